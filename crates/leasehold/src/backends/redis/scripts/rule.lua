-- The rule on resources of one partition: settle, and what settling needs. Ports State::settle, Entry::prolong,
-- State::standing and State::busy of model.rs. A resource is read once, and its state written once, by `finish`.
--
-- KEYS  1 leases  2 history, then three for each resource: entries, a hash of id -> record; order, a sorted set of ids
--       by ticket, less HELD for those that hold; ends, a sorted set of ids by expiry
-- ARGV  3 channel of events  4 how many resources, then the name of each, then what is asked about them
local max, min = math.max, math.min
local NONE = '0000000000000000'
local HELD = 4503599627370496
local LEAD = 10000000
-- Expired and absent entries that one call handles, so that none keeps the server busy for long.
local MOST = 1000

local now = tonumber(nows)
local push = sub(ARGV[2], 1, 1)
local prefix = sub(KEYS[1], 1, -7)
local resources = tonumber(ARGV[4])
local stored = call('HMGET', KEYS[1], '\tmemory', '\tfence', '\twatched', unpack(ARGV, 5, 4 + resources))
if stored[1] ~= ARGV[1] then
  return 'begin'
end
local memory = stored[1]
local newest = stored[2] or NONE
local watched = stored[3] and stored[3] > nows
local loaded, ended, events, reached, mail = {}, {}, {}, {}, {}
local unsettled = false

local function digits(number)
  return format('%016.0f', number)
end

local function tell(what, at, r, record)
  if watched then
    events[#events + 1] = what .. ' ' .. at .. '\n' .. r.name .. '\n' .. record
  end
end

-- Whether a push reaches the instance of an entry. Counted before anything is published: what nobody receives here is
-- still received by those who subscribed at a replica, who would take a grant that is passed on for theirs.
local function is_present(instance)
  if reached[instance] == nil then
    reached[instance] = push == 'B'
      or tonumber(call('PUBSUB', push == 'S' and 'SHARDNUMSUB' or 'NUMSUB', prefix .. 'to:' .. instance)[2]) > 0
  end
  return reached[instance]
end

-- Pushes to the instance of an entry if that can be reached.
local function notify(instance, message)
  if is_present(instance) then
    mail[instance] = mail[instance] and mail[instance] .. '\n' .. message or message
  end
  return reached[instance]
end

local function is_empty(r)
  return r.used == 0 and r.waiting == 0 and not r.lone
end

local function reset(r)
  r.ticket, r.used, r.waiting, r.passed, r.fence, r.shape = 0, 0, 0, 0, NONE, ''
end

-- The resource with this number; `nil` if a newer version wrote it.
local function resource(at)
  if loaded[at] then
    return loaded[at]
  end
  local value = stored[3 + at]
  local r = { name = ARGV[4 + at], entries = KEYS[3 * at], order = KEYS[3 * at + 1], ends = KEYS[3 * at + 2], value = value }
  reset(r)
  local ticket, used, waiting, passed, fence, shape =
    string.match(value or '', '^q1 (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$')
  if ticket then
    if call('EXISTS', r.entries, r.order, r.ends) == 3 then
      r.ticket, r.used, r.waiting, r.passed = tonumber(ticket), tonumber(used), tonumber(waiting), tonumber(passed)
      r.fence, r.shape = fence, shape
    else
      -- Redis evicted what the queue knew: the memory of this partition begins now.
      memory = sub(memory, 1, 43) .. nows
      call('DEL', r.entries, r.order, r.ends)
    end
  elseif value and sub(value, 1, 1) == '1' then
    r.lone = value
  elseif value then
    return nil
  end
  loaded[at] = r
  return r
end

local function remove(r, record, how, at, problem)
  if sub(record, 69, 84) == NONE then
    r.waiting = r.waiting - 1
  else
    r.used = r.used - tonumber(sub(record, 163, 172))
  end
  if is_remembered(how) then
    ended[#ended + 1] = r.name
    ended[#ended + 1] = at .. ' ' .. how .. problem .. '\n' .. record
  end
  tell(how, at, r, record)
end

-- Gives a lone holder keys of its own, or ends it if it has expired.
local function unfold(r)
  local record = r.lone
  if not record then
    return
  end
  r.lone, r.used = nil, tonumber(sub(record, 163, 172))
  if sub(record, 35, 50) <= nows then
    remove(r, record, 'expired', sub(record, 35, 50), '')
    return
  end
  local id = sub(record, 2, 33)
  r.ticket, r.fence, r.shape = 1, sub(record, 69, 84), sub(record, 151, 161)
  call('DEL', r.entries, r.order, r.ends)
  call('HSET', r.entries, id, record)
  call('ZADD', r.order, 1 - HELD, id)
  call('ZADD', r.ends, sub(record, 35, 50), id)
end

local function expire(r)
  if r.expired or is_empty(r) then
    return
  end
  r.expired = true
  local ids = call('ZRANGEBYSCORE', r.ends, '-inf', nows, 'LIMIT', 0, MOST)
  if #ids == 0 then
    return
  end
  unsettled = unsettled or #ids == MOST
  for i, record in ipairs(call('HMGET', r.entries, unpack(ids))) do
    remove(r, record, 'expired', sub(record, 35, 50), '')
  end
  call('HDEL', r.entries, unpack(ids))
  call('ZREM', r.order, unpack(ids))
  call('ZREM', r.ends, unpack(ids))
end

-- The fence of a record's grant.
local function next_fence(record)
  return digits(max(newest + 1, now, min(tonumber(sub(record, 134, 149)), now + LEAD)))
end

-- The record of an entry that begins to hold.
local function granted(r, record)
  newest = next_fence(record)
  r.fence, r.used = newest, r.used + tonumber(sub(record, 163, 172))
  record = sub(record, 1, 68) .. newest .. sub(record, 85, 102) .. nows .. sub(record, 119)
  tell('acquired', nows, r, record)
  return record
end

-- Grants from the front while units fit. Waiters whose instance cannot be reached are passed over, and again only
-- when one of them asks: each call goes on where the last one stopped.
local function grant(r, asker)
  local capacity = tonumber(sub(r.shape, 1, 10))
  local looked, some = 0, 1
  while r.waiting > 0 and r.used < capacity do
    if looked >= MOST then
      unsettled = true
      return
    end
    local found = call('ZRANGEBYSCORE', r.order, '(' .. format('%.0f', r.passed), '+inf', 'WITHSCORES', 'LIMIT', 0, some)
    local ids = {}
    for i = 1, #found, 2 do
      ids[#ids + 1] = found[i]
    end
    if #ids == 0 then
      return
    end
    local blocked, records, held = false, {}, {}
    for i, record in ipairs(call('HMGET', r.entries, unpack(ids))) do
      local id, instance = ids[i], sub(record, 176, 191)
      local fits = r.used + tonumber(sub(record, 163, 172)) <= capacity
      if not fits and (id == asker or is_present(instance)) then
        blocked = true
        break
      end
      local message = 'granted ' .. id .. ' ' .. next_fence(record) .. ' ' .. r.name
      if fits and sub(record, 35, 50) > nows and (id == asker or notify(instance, message)) then
        records[#records + 1] = id
        records[#records + 1] = granted(r, record)
        held[#held + 1] = found[2 * i] - HELD
        held[#held + 1] = id
        r.waiting = r.waiting - 1
      else
        r.passed = tonumber(found[2 * i])
      end
      if r.used >= capacity then
        break
      end
    end
    if #held > 0 then
      call('HSET', r.entries, unpack(records))
      for i = 1, #held, 2 do
        held[i] = format('%.0f', held[i])
      end
      call('ZADD', r.order, unpack(held))
    end
    if blocked then
      return
    end
    looked, some = looked + #ids, 100
  end
end

-- The record of an entry after settling. Its instance has just asked, so it is not passed over.
local function settle(r, id)
  unfold(r)
  local record = id and not is_empty(r) and call('HGET', r.entries, id)
  if record and r.passed > 0 and sub(record, 69, 84) == NONE then
    r.passed = min(r.passed, call('ZSCORE', r.order, id) - 1)
  end
  local used, waiting = r.used, r.waiting
  expire(r)
  grant(r, id)
  if record and (r.used ~= used or r.waiting ~= waiting) then
    record = call('HGET', r.entries, id)
  end
  return record and sub(record, 35, 50) > nows and record
end

-- End = now + ttl, never shorter than the end already given.
local function prolong(r, id, record, ttl)
  local later = digits(now + ttl)
  if later > sub(record, 35, 50) then
    call('ZADD', r.ends, later, id)
    return sub(record, 1, 34) .. later .. ' ' .. nows .. sub(record, 68, 119) .. ttl .. sub(record, 133)
  end
  return sub(record, 1, 51) .. nows .. sub(record, 68)
end

-- µs until the first end of those in the way, or ''. One that is not among the first hundred is asked about too early.
local function first_end(r, ticket)
  local some = call('ZRANGE', r.ends, 0, 3, 'WITHSCORES')
  local more = r.waiting > 3 and call('ZRANGE', r.ends, 4, 99, 'WITHSCORES')
  for _, found in ipairs({ some, more or {} }) do
    for i = 1, #found, 2 do
      if tonumber(call('ZSCORE', r.order, found[i])) < ticket or found == more and i == 191 then
        return format('%.0f', max(0, found[i + 1] - now))
      end
    end
  end
  return ''
end

-- How an entry stands: 'holding', fence, acquired; 'waiting', ahead, newest fence, µs until the first end; 'gone'.
local function standing(r, id, record)
  if not record then
    return { 'gone' }
  end
  if sub(record, 69, 84) ~= NONE then
    return { 'holding', sub(record, 69, 84), sub(record, 103, 118) }
  end
  local ticket = call('ZSCORE', r.order, id)
  local ahead = call('ZCOUNT', r.order, 0, '(' .. ticket)
  return { 'waiting', format('%.0f', ahead), r.fence, first_end(r, tonumber(ticket)) }
end

-- The records of the first who hold.
local function holders(r, most)
  local ids = call('ZRANGEBYSCORE', r.order, '-inf', '(0', 'LIMIT', 0, most)
  return #ids == 0 and {} or call('HMGET', r.entries, unpack(ids))
end

-- Answers one question. An error about one resource is its own; one about the server is everyone's.
local function try(ask, r, ...)
  if not r then
    return { 'newer' }
  end
  local done, answer = pcall(ask, r, ...)
  if done then
    return answer
  end
  local text = type(answer) == 'table' and answer.err or tostring(answer)
  if string.find(text, 'WRONGTYPE') or string.find(text, 'attempt to') or string.find(text, 'bad argument') then
    return { 'error', text }
  end
  error(answer, 0)
end

-- Writes what has changed, remembers what ended, and tells those who watch.
local function finish(answers)
  local written, gone = {}, {}
  if newest ~= (stored[2] or NONE) then
    written = { '\tfence', newest }
  end
  if memory ~= stored[1] then
    written[#written + 1] = '\tmemory'
    written[#written + 1] = memory
  end
  for _, r in pairs(loaded) do
    local value = r.lone
    if not value and not is_empty(r) then
      value = format('q1 %.0f %.0f %.0f %.0f %s %s', r.ticket, r.used, r.waiting, r.passed, r.fence, r.shape)
    end
    if not value and r.value then
      gone[#gone + 1] = r.name
    elseif value and value ~= r.value then
      written[#written + 1] = r.name
      written[#written + 1] = value
    end
  end
  if #gone > 0 then
    call('HDEL', KEYS[1], unpack(gone))
  end
  if #written > 0 then
    call('HSET', KEYS[1], unpack(written))
  end
  remember(ended)
  for instance, message in pairs(mail) do
    publish(prefix .. 'to:' .. instance, message)
  end
  if #events > 0 then
    publish(ARGV[3], table.concat(events, '\30'))
  end
  if unsettled then
    answers[#answers + 1] = 'unsettled'
  end
  return answers
end
