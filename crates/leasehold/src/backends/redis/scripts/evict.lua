-- Takes the lease with this fence away from its holder. Ports State::evict of model.rs.
--
-- KEYS    1 fence  2 index  3 history  4 watched  5 lease  6 entries  7 order  8 ends
-- ARGV    1 settings  2 name  3 expected fence (16 digits)  4 problem as JSON
-- answer  {'evicted', record}  {'none', fence of each holder...}

local time = redis.call('TIME')
local nows = time[1] .. string.sub('00000' .. time[2], -6)
local settings = ARGV[1]

--@ rule.lua

take(5, ARGV[2])
settle()
local current = { 'none' }
for _, record in ipairs(holders()) do
  local fence = sub(record, 68, 83)
  if fence == ARGV[3] then
    local id = sub(record, 1, 32)
    finish(id, record, 'evicted', nows, ARGV[4])
    knock(match(record, '^%d+ %d+ %a+ %a+ %d+ (%S+)', 133), 'evicted ' .. id)
    settle()
    put_down()
    return { 'evicted', record }
  end
  current[#current + 1] = fence
end
put_down()
return current
