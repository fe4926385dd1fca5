-- Reads the records of some names, or of one.
--
-- KEYS    1 runs
-- ARGV    3 cursor  4 prefix of the names  5 the one name, or ''  6 how long a record is kept (µs)
-- answer  {next cursor, then names, each followed by its record}
--@ prelude.lua

local scanned
if ARGV[5] ~= '' then
  scanned = { '0', { ARGV[5], call('HGET', KEYS[1], ARGV[5]) or '' } }
else
  scanned = call('HSCAN', KEYS[1], ARGV[3], 'COUNT', 500)
end
local records = { scanned[1] }
for i = 1, #scanned[2], 2 do
  local name, record = scanned[2][i], scanned[2][i + 1]
  local skip, success = string.match(record, '^1 %d+ (%d+) (%d+) ')
  local reported = skip and math.max(skip, success) or 0
  if sub(name, 1, #ARGV[4]) == ARGV[4] and reported > now_text - ARGV[6] then
    records[#records + 1] = name
    records[#records + 1] = record
  end
end
return records
