-- The rule on one resource at a time: settle, and what settling needs. Ports State::settle, Entry::prolong,
-- State::standing and State::busy of model.rs. Put into each script where it says so; expects `nows`, the
-- server's time in µs as 16 digits, and `settings`.
--
-- KEYS      1 fence  2 index  3 history  4 watched: of the partition; then 4 for each resource:
--           lease  entries  order  ends
-- settings  push verb: P publish, S sharded publish, B publish without knowing who hears it;
--           history: a all, p problems, o off; then how many ended leases to keep
--
-- A resource has one of two forms. Folded: `lease` is the record of the one holder, who takes all there is.
-- Unfolded: `entries` is a hash of id -> record, with `ticket` (last given), `used` (units), `shape` (in force),
-- `fence` (newest of this resource) and `kept` (when Redis may forget it, ms); `order` a sorted set of ids by
-- ticket, less HELD for those that hold; `ends` a sorted set of ids by expiry.
--
-- A record has fixed columns, then the tail that its asker wrote:
--   id(1-32) ends(34-49) renewed(51-66) fence(68-83) asked(85-100) acquired(102-117) ttl(119-131)
--   units capacity family mode floor instance(133-) \n holder and note as JSON \n metadata as JSON
-- Times are µs; fence and acquired are zeros while it waits.

local call, sub, match, format = redis.call, string.sub, string.match, string.format
local max, min = math.max, math.min
local HELD = 4503599627370496
local LEAD = 10000000
local DAY = 86400000
local NONE = '0000000000000000'

local now = tonumber(nows)
local verb = sub(settings, 1, 1)
local follower = call('GET', KEYS[4])
local prefix = sub(KEYS[1], 1, -6)
local absent = {}
local name, lease, entries, order, ends

local function digits(number)
  return format('%016.0f', number)
end

-- Tells those who watch.
local function tell(what, at, record)
  if follower then
    call('PUBLISH', follower, what .. ' ' .. at .. ' ' .. sub(record, 68, 83) .. '\n' .. name .. '\n' .. record)
  end
end

-- Tells the instance of an entry; whether it may have heard.
local function knock(instance, message)
  if absent[instance] then
    return false
  end
  local heard = call(verb == 'S' and 'SPUBLISH' or 'PUBLISH', prefix .. 'to:' .. instance, message)
  if heard == 0 and verb ~= 'B' then
    absent[instance] = true
    return false
  end
  return true
end

local function reachable(instance)
  if verb == 'B' then
    return true
  end
  local counted = call('PUBSUB', verb == 'S' and 'SHARDNUMSUB' or 'NUMSUB', prefix .. 'to:' .. instance)
  return tonumber(counted[2]) > 0
end

local function remember(record, how, at, problem)
  local mode = sub(settings, 2, 2)
  if mode == 'o' or (mode == 'p' and (how == 'released' or how == 'cancelled')) then
    return
  end
  if problem and problem ~= '' then
    call('XADD', KEYS[3], 'MAXLEN', '~', sub(settings, 3), '*', 'name', name, 'end', how .. ' ' .. at, 'record', record, 'problem', problem)
  else
    call('XADD', KEYS[3], 'MAXLEN', '~', sub(settings, 3), '*', 'name', name, 'end', how .. ' ' .. at, 'record', record)
  end
end

-- Sees to it that Redis forgets what nobody touches, long after its end.
local function keep(until_us, kept)
  local due = until_us / 1000 + DAY
  if due > kept then
    local left = format('%.0f', due + DAY - now / 1000)
    call('HSET', entries, 'kept', format('%.0f', due + DAY))
    call('PEXPIRE', entries, left)
    call('PEXPIRE', order, left)
    call('PEXPIRE', ends, left)
  end
end

-- Takes the resource at this place of KEYS in hand and unfolds it.
local function take(at, named)
  name, lease, entries, order, ends = named, KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3]
  local record = call('GET', lease)
  if record then
    local id = sub(record, 1, 32)
    local units, shape = match(record, '^(%d+) (%d+ %a+)', 133)
    call('DEL', lease)
    call('HSET', entries, 'ticket', 1, 'used', units, 'shape', shape, 'fence', sub(record, 68, 83), 'kept', 0, id, record)
    call('ZADD', order, 1 - HELD, id)
    call('ZADD', ends, sub(record, 34, 49), id)
    keep(tonumber(sub(record, 34, 49)), 0)
  end
end

-- Puts what is left of it down: nothing is kept about a name that nobody wants.
local function put_down()
  if call('EXISTS', order) == 0 then
    call('DEL', entries)
    call('ZREM', KEYS[2], name)
  end
end

-- Ends an entry.
local function finish(id, record, how, at, problem)
  if sub(record, 68, 83) ~= NONE then
    call('HINCRBY', entries, 'used', '-' .. match(record, '^%d+', 133))
  end
  call('HDEL', entries, id)
  call('ZREM', order, id)
  call('ZREM', ends, id)
  remember(record, how, at, problem)
  tell(how, at, record)
end

local function settle(asker)
  for _, id in ipairs(call('ZRANGEBYSCORE', ends, '-inf', nows)) do
    local record = call('HGET', entries, id)
    finish(id, record, 'expired', sub(record, 34, 49))
  end
  local state = call('HMGET', entries, 'used', 'shape')
  if not state[2] then
    return
  end
  local used, capacity = tonumber(state[1]), tonumber(match(state[2], '^%d+'))
  local passed = 0
  while used < capacity do
    local id = call('ZRANGEBYSCORE', order, 0, '+inf', 'LIMIT', passed, 1)[1]
    if not id then
      return
    end
    local record = call('HGET', entries, id)
    local units, floor, instance = match(record, '^(%d+) %d+ %a+ %a+ (%d+) (%S+)', 133)
    if used + units > capacity then
      if id == asker or reachable(instance) then
        return
      end
      passed = passed + 1
    else
      local last = tonumber(call('GET', KEYS[1]) or 0)
      local fence = digits(max(last + 1, now, min(tonumber(floor), now + LEAD)))
      if id == asker or knock(instance, 'granted ' .. id .. ' ' .. fence .. ' ' .. name) then
        record = sub(record, 1, 67) .. fence .. sub(record, 84, 101) .. nows .. sub(record, 118)
        call('SET', KEYS[1], fence)
        call('HSET', entries, id, record, 'fence', fence)
        call('ZINCRBY', order, -HELD, id)
        used = call('HINCRBY', entries, 'used', units)
        tell('acquired', nows, record)
      else
        passed = passed + 1
      end
    end
  end
end

-- End = now + ttl, never shorter than the end already given.
local function prolong(id, record, ttl)
  local later = now + tonumber(ttl)
  if later > tonumber(sub(record, 34, 49)) then
    record = sub(record, 1, 33) .. digits(later) .. ' ' .. nows .. sub(record, 67, 118) .. ttl .. sub(record, 132)
    call('ZADD', ends, digits(later), id)
    keep(later, tonumber(call('HGET', entries, 'kept')))
  else
    record = sub(record, 1, 50) .. nows .. sub(record, 67)
  end
  call('HSET', entries, id, record)
  return record
end

-- µs until the first end among those ahead of this ticket, or ''.
local function first_end_ahead(ticket)
  local at = 0
  repeat
    local some = call('ZRANGE', ends, at, at + 15, 'WITHSCORES')
    for i = 1, #some, 2 do
      local theirs = tonumber(call('ZSCORE', order, some[i]))
      if theirs < 0 then
        theirs = theirs + HELD
      end
      if theirs < ticket then
        return format('%.0f', max(0, tonumber(some[i + 1]) - now))
      end
    end
    at = at + 16
  until #some == 0
  return ''
end

-- How an entry stands: 'holding', fence, acquired; 'waiting', ahead, last fence, µs until the first end ahead; 'gone'.
local function standing(id)
  local state = call('HMGET', entries, id, 'fence')
  local record = state[1]
  if not record then
    return { 'gone' }
  end
  if sub(record, 68, 83) ~= NONE then
    return { 'holding', sub(record, 68, 83), sub(record, 102, 117) }
  end
  local ticket = call('ZSCORE', order, id)
  local ahead = call('ZCOUNT', order, 0, '(' .. ticket)
  return { 'waiting', format('%.0f', ahead), state[2], first_end_ahead(tonumber(ticket)) }
end

local function holders()
  local records = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', order, '-inf', '(0')) do
    records[#records + 1] = call('HGET', entries, id)
  end
  return records
end
