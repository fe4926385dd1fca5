-- Reads the memory of a partition, and begins another where the server may have lost what it knew: it was started
-- again or took another's place, or nothing is stored.
--
-- KEYS    1 leases  2 and 3 keys that only version 0.1 wrote
-- ARGV    3 run id of the server, or 40 dashes where the client may not ask for it
-- answer  {memory, now}, or {'other', what wrote it}
--@ head.lua

local memory = call('HGET', KEYS[1], '\tmemory')
if memory and sub(memory, 1, 2) ~= '2 ' then
  return { 'other', string.match(memory, '^%S+') }
end
if not memory and call('EXISTS', KEYS[2], KEYS[3]) > 0 then
  return { 'other', '1' }
end
local run_id = ARGV[3]
if not memory or sub(run_id, 1, 1) ~= '-' and sub(memory, 3, 42) ~= run_id then
  memory = '2 ' .. run_id .. ' ' .. nows
  call('HDEL', KEYS[1], '\tnothing')
  call('HSET', KEYS[1], '\tmemory', memory)
  call('HSETNX', KEYS[1], '\tsweep', format('%016.0f 0', nows + 5000000))
end
return { memory, nows }
