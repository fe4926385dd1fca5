-- Reads the partition's epoch. Starts a new one if the server restarted, was replaced or has no data.
--
-- KEYS    1 leases  2 and 3 keys that only format 1 has
-- ARGV    3 run id of the server, or 40 dashes where the client may not ask for it
-- answer  {epoch, now}, or {'other', its format} if this version cannot read the data
--@ prelude.lua

local epoch = call('HGET', KEYS[1], '\tmemory')
if epoch and sub(epoch, 1, 2) ~= '3 ' then
  return { 'other', string.match(epoch, '^%S+') }
end
if not epoch and call('EXISTS', KEYS[2], KEYS[3]) > 0 then
  return { 'other', '1' }
end
local run_id = ARGV[3]
if not epoch or sub(run_id, 1, 1) ~= '-' and sub(epoch, 3, 42) ~= run_id then
  epoch = '3 ' .. run_id .. ' ' .. now_text
  call('HDEL', KEYS[1], '\tnothing')
  call('HSET', KEYS[1], '\tmemory', epoch)
  call('HSETNX', KEYS[1], '\tsweep', format('%016.0f 0', now_text + 5000000))
end
return { epoch, now_text }
