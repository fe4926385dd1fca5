-- Asks for a lease once: grants, queues, or leaves nothing behind. Ports State::acquire of model.rs.
--
-- KEYS    1 fence  2 index  3 history  4 watched  5 lease  6 entries  7 order  8 ends
-- ARGV    1 settings  2 name  3 lease id  4 ttl (µs, 13 digits)  5 shape (capacity and family)  6 tail of the record
--         7 'try' or 'queue'  8 floor of the fence, or 0  9 'whole' if it takes all there is, else 'part'
--         10 life of the keys if nobody touches them (ms)
-- answer  {'holding', fence, acquired}  {'waiting', ahead, last fence, µs until the first end ahead, or ''}
--         {'busy', now, waiting, record of each holder...}  {'wrong', shape in force}

local time = redis.call('TIME')
local nows = time[1] .. string.sub('00000' .. time[2], -6)
local settings = ARGV[1]

-- The plain case: all of it is asked for, nobody has any, nobody waits, nobody watches.
if ARGV[9] == 'whole' and redis.call('EXISTS', KEYS[5], KEYS[6], KEYS[4]) == 0 then
  local fence = nows
  local last = redis.call('SET', KEYS[1], nows, 'GET')
  if ARGV[8] ~= '0' or (last and last >= nows) then
    local floor = math.min(tonumber(ARGV[8]), nows + 10000000)
    fence = string.format('%016.0f', math.max((last or 0) + 1, tonumber(nows), floor))
    redis.call('SET', KEYS[1], fence)
  end
  local record = ARGV[3] .. string.format(' %016.0f ', nows + ARGV[4]) .. nows .. ' ' .. fence .. ' ' .. nows .. ' ' .. nows
  redis.call('SET', KEYS[5], record .. ' ' .. ARGV[4] .. ' ' .. ARGV[6], 'PX', ARGV[10])
  redis.call('ZADD', KEYS[2], 0, ARGV[2])
  return { 'holding', fence, nows }
end

-- Somebody else has all of it, and the asker will not wait.
if ARGV[7] == 'try' then
  local record = redis.call('GET', KEYS[5])
  if record and string.sub(record, 34, 49) > nows and string.sub(record, 1, 32) ~= ARGV[3] then
    local shape = string.match(record, '^%d+ (%d+ %a+)', 133)
    if shape ~= ARGV[5] then
      return { 'wrong', shape }
    end
    return { 'busy', nows, '0', record }
  end
end

--@ rule.lua

take(5, ARGV[2])
local id = ARGV[3]
settle(id)

local known = call('HGET', entries, id)
if known then
  prolong(id, known, ARGV[4])
else
  local shape = call('HGET', entries, 'shape')
  if call('EXISTS', order) == 0 then
    call('DEL', entries)
    call('HSET', entries, 'ticket', 0, 'used', 0, 'shape', ARGV[5], 'fence', NONE, 'kept', 0)
    call('ZADD', KEYS[2], 0, name)
  elseif shape ~= ARGV[5] then
    return { 'wrong', shape }
  end
  local stop = digits(now + tonumber(ARGV[4]))
  call('HSET', entries, id, id .. ' ' .. stop .. ' ' .. nows .. ' ' .. NONE .. ' ' .. nows .. ' ' .. NONE .. ' ' .. ARGV[4] .. ' ' .. ARGV[6])
  call('ZADD', order, call('HINCRBY', entries, 'ticket', 1), id)
  call('ZADD', ends, stop, id)
  settle(id)
  local record = call('HGET', entries, id)
  if sub(record, 68, 83) == NONE then
    if ARGV[7] == 'try' then
      call('HDEL', entries, id)
      call('ZREM', order, id)
      call('ZREM', ends, id)
      local answer = holders()
      table.insert(answer, 1, format('%.0f', call('ZCOUNT', order, 0, '+inf')))
      table.insert(answer, 1, nows)
      table.insert(answer, 1, 'busy')
      put_down()
      return answer
    end
    tell('waiting', nows, record)
  end
  keep(tonumber(stop), tonumber(call('HGET', entries, 'kept')))
end
return standing(id)
