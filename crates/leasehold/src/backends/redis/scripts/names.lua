-- Reads some names that have live leases.
--
-- KEYS    1 leases
-- ARGV    3 cursor  4 prefix of the names
-- answer  {next cursor, then names}
--@ prelude.lua

local scanned = call('HSCAN', KEYS[1], ARGV[3], 'COUNT', 500)
local names = { scanned[1] }
for i = 1, #scanned[2], 2 do
  local name = scanned[2][i]
  if sub(name, 1, 1) ~= '\t' and sub(name, 1, #ARGV[4]) == ARGV[4] then
    names[#names + 1] = name
  end
end
return names
