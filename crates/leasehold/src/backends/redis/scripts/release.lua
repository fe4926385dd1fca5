-- Ends a lease or leaves the queue, and hands on what is free. Ports State::release of model.rs.
--
-- KEYS    1 fence  2 index  3 history  4 watched  5 lease  6 entries  7 order  8 ends
-- ARGV    1 settings  2 name  3 lease id  4 ending  5 problem as JSON, or nothing
-- answer  'freed'  'left'  'gone'

local time = redis.call('TIME')
local nows = time[1] .. string.sub('00000' .. time[2], -6)
local settings = ARGV[1]

-- The plain case: its one holder gives it back, nobody waits, nobody watches.
local record = redis.call('GET', KEYS[5])
if record then
  if string.sub(record, 1, 32) == ARGV[3] and string.sub(record, 34, 49) > nows
    and string.sub(settings, 2, 2) == 'a' and redis.call('EXISTS', KEYS[4]) == 0 then
    redis.call('DEL', KEYS[5])
    redis.call('ZREM', KEYS[2], ARGV[2])
    if ARGV[5] == '' then
      redis.call('XADD', KEYS[3], 'MAXLEN', '~', string.sub(settings, 3), '*', 'name', ARGV[2], 'end', ARGV[4] .. ' ' .. nows, 'record', record)
    else
      redis.call('XADD', KEYS[3], 'MAXLEN', '~', string.sub(settings, 3), '*', 'name', ARGV[2], 'end', ARGV[4] .. ' ' .. nows, 'record', record, 'problem', ARGV[5])
    end
    return 'freed'
  end
elseif redis.call('EXISTS', KEYS[6]) == 0 then
  return 'gone'
end

--@ rule.lua

take(5, ARGV[2])
local id = ARGV[3]
settle(id)
record = call('HGET', entries, id)
if not record then
  put_down()
  return 'gone'
end
local held = sub(record, 68, 83) ~= NONE
local how = ARGV[4]
if how == 'released' and not held then
  how = 'cancelled'
end
finish(id, record, how, nows, ARGV[5])
settle()
put_down()
return held and 'freed' or 'left'
