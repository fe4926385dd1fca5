-- The lease model for resources of one partition: settle, and what settling needs. Ports State::settle, Entry::prolong,
-- State::standing and State::busy of model.rs. A resource is read once, and its state written once, by `finish`.
--
-- KEYS  1 leases  2 history, then three for each resource: entries, a hash of id -> record; order, a sorted set of ids
--       by ticket, less HOLDER_OFFSET for those that hold; ends, a sorted set of ids by expiry
-- ARGV  3 channel of events  4 how many resources, then the name of each, then what is asked about them
local max, min = math.max, math.min
-- Stands for fence and time of acquiring in an entry that waits.
local NO_FENCE = '0000000000000000'
-- 2^52: holders sort before waiters.
local HOLDER_OFFSET = 4503599627370496
-- How far a requested fence may be ahead of the clock, in µs.
local FENCE_LEAD = 10000000
-- Expired and absent entries that one call handles, so that none keeps the server busy for long.
local MAX_HANDLED = 1000

local now = tonumber(now_text)
local push = sub(ARGV[2], 1, 1)
local prefix = sub(KEYS[1], 1, -7)
local resources = tonumber(ARGV[4])
local stored = call('HMGET', KEYS[1], '\tmemory', '\tfence', '\twatched', unpack(ARGV, 5, 4 + resources))
if stored[1] ~= ARGV[1] then
  return 'begin'
end
local epoch = stored[1]
local highest = stored[2] or NO_FENCE
local watched = stored[3] and stored[3] > now_text
local loaded, ended, events, reached, messages = {}, {}, {}, {}, {}
local unsettled = false

local function digits(number)
  return format('%016.0f', number)
end

-- A lease with this fence has ended.
local function raise_highest_fence(fence)
  if fence > highest then
    highest = fence
  end
end

-- When what begins now with this ttl ends.
local ends_by_ttl = {}
local function end_of(ttl)
  if not ends_by_ttl[ttl] then
    ends_by_ttl[ttl] = digits(now + ttl)
  end
  return ends_by_ttl[ttl]
end

local function add_event(what, at, r, record)
  if watched then
    events[#events + 1] = what .. ' ' .. at .. '\n' .. r.name .. '\n' .. record
  end
end

-- Whether a push reaches the instance of an entry. Count before publishing: a subscriber at a replica is not counted but
-- gets the message, and would believe in a grant that goes to the next waiter.
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
    messages[instance] = messages[instance] and messages[instance] .. '\n' .. message or message
  end
  return reached[instance]
end

local function is_empty(r)
  return r.used == 0 and r.waiting == 0 and not r.lone and not r.shared
end

-- Whether it needs no queue: nobody waits, and what is left can be shared.
local function is_plain(r)
  return r.waiting == 0 and (r.used == 0 or r.used < tonumber(sub(r.shape, 1, 10)))
end

-- Whether the fast script can handle it: it needs no queue, or one has all of it and the others wait.
local function is_fast(r)
  local capacity = tonumber(sub(r.shape, 1, 10))
  return is_plain(r) or r.skipped_to == 0 and r.used == capacity and (capacity == 1 or sub(r.shape, 11) ~= 'p')
end

local function reset(r)
  r.ticket, r.used, r.waiting, r.skipped_to, r.fence, r.shape = 0, 0, 0, 0, NO_FENCE, ''
  -- What this call knows and has changed: records by id, `false` for those that are gone; and what is to be written.
  r.known, r.knows_all, r.put, r.ranks, r.expiries, r.deleted_ids = {}, true, {}, {}, {}, {}
  -- `first` is when the first of all entries ends, if this call knows; none ends before `not_before`.
  r.first, r.not_before, r.head, r.queue_changed = nil, nil, nil, false
end

-- The resource with this number; `nil` if a newer version wrote it.
local function resource(at)
  if loaded[at] then
    return loaded[at]
  end
  local value = stored[3 + at]
  local r = { name = ARGV[4 + at], entries = KEYS[3 * at], order = KEYS[3 * at + 1], ends = KEYS[3 * at + 2], value = value }
  reset(r)
  local ticket, used, waiting, skipped_to, not_before, fence, shape =
    string.match(value or '', '^q1 (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$')
  local is_shared = sub(value or '', 1, 2) == 's1'
  local keys = ticket and 3 or is_shared and 1 or 0
  if keys > 0 and call('EXISTS', r.entries, unpack({ r.order, r.ends }, 1, keys - 1)) < keys then
    -- Redis evicted a key of this resource: a new epoch of the partition begins now.
    epoch = sub(epoch, 1, 43) .. now_text
    raise_highest_fence(fence or sub(value, 32, 47))
    call('DEL', r.entries, r.order, r.ends)
  elseif ticket then
    r.ticket, r.used, r.waiting, r.skipped_to =
      tonumber(ticket), tonumber(used), tonumber(waiting), tonumber(skipped_to)
    r.not_before, r.fence, r.shape, r.knows_all = not_before, fence, shape, false
  elseif is_shared then
    r.shared, r.knows_all = value, false
  elseif value and sub(value, 1, 1) == '1' then
    r.lone = value
  elseif value then
    return nil
  end
  loaded[at] = r
  return r
end

-- Reads these entries in one call.
local function read(r, ids)
  if r.knows_all or r.shared then
    return
  end
  local unknown = {}
  for _, id in ipairs(ids) do
    if r.known[id] == nil then
      unknown[#unknown + 1] = id
    end
  end
  for i, record in ipairs(#unknown > 0 and call('HMGET', r.entries, unpack(unknown)) or {}) do
    r.known[unknown[i]] = record
  end
end

local function entry(r, id)
  local record = r.known[id]
  if record == nil and not r.knows_all then
    record = call('HGET', r.entries, id)
    r.known[id] = record
  end
  return record or nil
end

local function put(r, id, record)
  r.known[id], r.put[id] = record, true
  if r.head and r.head.id == id then
    r.head = nil
  end
end

local function set_expiry(r, id, expiry)
  r.expiries[id] = expiry
  if r.first and expiry < r.first then
    r.first = expiry
  end
  if r.not_before and expiry < r.not_before then
    r.not_before = expiry
  end
end

-- Deletes an entry; the caller updates `used` and `waiting`.
local function delete_entry(r, id, record)
  r.known[id], r.put[id], r.ranks[id], r.expiries[id] = false, nil, nil, nil
  r.deleted_ids[#r.deleted_ids + 1] = id
  if sub(record, 35, 50) == r.first then
    r.first = nil
  end
  if sub(record, 69, 84) == NO_FENCE then
    r.queue_changed = true
  end
  if r.head and r.head.id == id then
    r.head = nil
  end
end

-- Writes what has changed of the entries, and of their order unless that is not needed any more.
local function flush(r, without_order)
  if #r.deleted_ids > 0 then
    call('HDEL', r.entries, unpack(r.deleted_ids))
    if not without_order then
      call('ZREM', r.order, unpack(r.deleted_ids))
      call('ZREM', r.ends, unpack(r.deleted_ids))
    end
  end
  local records, ranks, expiries = {}, {}, {}
  for id in pairs(r.put) do
    records[#records + 1] = id
    records[#records + 1] = r.known[id]
  end
  for id, rank in pairs(r.ranks) do
    ranks[#ranks + 1] = format('%.0f', rank)
    ranks[#ranks + 1] = id
  end
  for id, expiry in pairs(r.expiries) do
    expiries[#expiries + 1] = expiry
    expiries[#expiries + 1] = id
  end
  for at = 1, #records, 2000 do
    call('HSET', r.entries, unpack(records, at, min(#records, at + 1999)))
  end
  for at = 1, without_order and 0 or #ranks, 2000 do
    call('ZADD', r.order, unpack(ranks, at, min(#ranks, at + 1999)))
  end
  for at = 1, without_order and 0 or #expiries, 2000 do
    call('ZADD', r.ends, unpack(expiries, at, min(#expiries, at + 1999)))
  end
  r.put, r.ranks, r.expiries, r.deleted_ids, r.queue_changed = {}, {}, {}, {}, false
end

-- When the first of all entries ends.
local function first_of_all(r)
  if not r.first then
    flush(r)
    local expiry = call('ZRANGE', r.ends, 0, 0, 'WITHSCORES')[2]
    r.first = expiry and digits(expiry)
    r.not_before = r.first
  end
  return r.first
end

local function remove(r, record, ending, at, problem)
  if sub(record, 69, 84) == NO_FENCE then
    r.waiting = r.waiting - 1
  else
    r.used = r.used - sub(record, 163, 172)
    raise_highest_fence(sub(record, 69, 84))
  end
  if is_remembered(ending) then
    ended[#ended + 1] = at .. ' ' .. ending .. problem .. '\n' .. r.name
    ended[#ended + 1] = record
  end
  add_event(ending, at, r, record)
end

-- Adds holders without a queue to the ordered sets, or ends an expired lone holder.
local function build_queue(r)
  local records = {}
  if r.shared then
    local flat = call('HGETALL', r.entries)
    for i = 2, #flat, 2 do
      records[#records + 1] = flat[i]
    end
    table.sort(records, function(one, other)
      return sub(one, 69, 84) < sub(other, 69, 84)
    end)
    r.fence, r.shape = sub(r.shared, 32, 47), sub(r.shared, 49, 59)
    call('DEL', r.order, r.ends)
  elseif r.lone and sub(r.lone, 35, 50) <= now_text then
    r.used = tonumber(sub(r.lone, 163, 172))
    remove(r, r.lone, 'expired', sub(r.lone, 35, 50), '')
  elseif r.lone then
    records = { r.lone }
    r.fence, r.shape = sub(r.lone, 69, 84), sub(r.lone, 151, 161)
    call('DEL', r.entries, r.order, r.ends)
    r.put[sub(r.lone, 2, 33)] = true
  end
  for _, record in ipairs(records) do
    local id, expiry = sub(record, 2, 33), sub(record, 35, 50)
    r.ticket, r.used, r.known[id] = r.ticket + 1, r.used + sub(record, 163, 172), record
    r.ranks[id], r.expiries[id] = r.ticket - HOLDER_OFFSET, expiry
    r.first = r.first and r.first < expiry and r.first or expiry
    r.not_before, r.knows_all = r.first, true
  end
  r.lone, r.shared = nil, nil
end

local function expire(r)
  if r.expired or is_empty(r) then
    return
  end
  r.expired = true
  if r.not_before and r.not_before > now_text or first_of_all(r) > now_text then
    return
  end
  flush(r)
  local ids = call('ZRANGEBYSCORE', r.ends, '-inf', now_text, 'LIMIT', 0, MAX_HANDLED)
  unsettled = unsettled or #ids == MAX_HANDLED
  for i, record in ipairs(call('HMGET', r.entries, unpack(ids))) do
    remove(r, record, 'expired', sub(record, 35, 50), '')
    delete_entry(r, ids[i], record)
  end
  r.not_before = nil
end

-- The fence of a record's grant: above those of its name that hold, and above those that have ended.
local function next_fence(r, record)
  return digits(max(highest + 1, r.fence + 1, now, min(tonumber(sub(record, 134, 149)), now + FENCE_LEAD)))
end

-- The record of an entry that begins to hold.
local function granted(r, record, fence)
  r.fence, r.used = fence or next_fence(r, record), r.used + sub(record, 163, 172)
  record = sub(record, 1, 68) .. r.fence .. sub(record, 85, 102) .. now_text .. sub(record, 119)
  add_event('acquired', now_text, r, record)
  return record
end

-- Grants from the front while units fit. Waiters whose instance cannot be reached are skipped until one of them asks
-- again: each call goes on where the last one stopped.
local function grant(r, asker)
  local capacity = tonumber(sub(r.shape, 1, 10))
  local scanned, batch_size = 0, 1
  while r.waiting > 0 and r.used < capacity do
    local head = r.head
    if head and r.used + head.units > capacity and (head.id == asker or is_present(head.instance)) then
      return
    end
    if scanned >= MAX_HANDLED then
      unsettled = true
      return
    end
    if r.queue_changed then
      flush(r)
    end
    local found = call('ZRANGEBYSCORE', r.order, '(' .. format('%.0f', r.skipped_to), '+inf',
      'WITHSCORES', 'LIMIT', 0, batch_size)
    local ids = {}
    for i = 1, #found, 2 do
      ids[#ids + 1] = found[i]
    end
    if #ids == 0 then
      return
    end
    read(r, ids)
    r.head = nil
    for i, id in ipairs(ids) do
      local record = entry(r, id)
      local instance, units = sub(record, 176, 191), tonumber(sub(record, 163, 172))
      local fits = r.used + units <= capacity
      if not fits and (id == asker or is_present(instance)) then
        r.head = { id = id, instance = instance, units = units }
        return
      end
      local fence = fits and next_fence(r, record)
      if fits and sub(record, 35, 50) > now_text
        and (id == asker or notify(instance, 'granted ' .. id .. ' ' .. fence .. ' ' .. r.name)) then
        put(r, id, granted(r, record, fence))
        r.ranks[id] = found[2 * i] - HOLDER_OFFSET
        r.waiting, r.queue_changed = r.waiting - 1, true
      else
        r.skipped_to = tonumber(found[2 * i])
      end
      if r.used >= capacity then
        break
      end
    end
    scanned, batch_size = scanned + #ids, 100
  end
end

-- The record of an entry after settling. Its instance has just asked, so it is not skipped.
local function settle(r, id)
  build_queue(r)
  local record = id and not is_empty(r) and entry(r, id)
  if record and r.skipped_to > 0 and sub(record, 69, 84) == NO_FENCE then
    r.skipped_to = min(r.skipped_to, (r.ranks[id] or call('ZSCORE', r.order, id)) - 1)
    r.head = nil
  end
  expire(r)
  grant(r, id)
  record = record and entry(r, id)
  return record and sub(record, 35, 50) > now_text and record
end

-- End = now + ttl, never shorter than the end already given.
local function prolong(r, id, record, ttl)
  local later = end_of(ttl)
  if later > sub(record, 35, 50) then
    if sub(record, 35, 50) == r.first then
      r.first = nil
    end
    set_expiry(r, id, later)
    return sub(record, 1, 34) .. later .. ' ' .. now_text .. sub(record, 68, 119) .. ttl .. sub(record, 133)
  end
  return sub(record, 1, 51) .. now_text .. sub(record, 68)
end

-- µs until the first end of those in the way, or ''. If no blocker is among the first 100 expiries, the waiter asks again
-- too early.
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
  if sub(record, 69, 84) ~= NO_FENCE then
    return { 'holding', sub(record, 69, 84), sub(record, 103, 118) }
  end
  flush(r)
  local ticket = call('ZSCORE', r.order, id)
  local ahead = call('ZCOUNT', r.order, 0, '(' .. ticket)
  return { 'waiting', format('%.0f', ahead), r.fence, first_end(r, tonumber(ticket)) }
end

-- The records of the first who hold.
local function holders(r, limit)
  flush(r)
  local ids = call('ZRANGEBYSCORE', r.order, '-inf', '(0', 'LIMIT', 0, limit)
  return #ids == 0 and {} or call('HMGET', r.entries, unpack(ids))
end

-- Answers one request. Errors of one resource become its answer; server errors abort the script.
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

-- Writes what has changed, appends ended leases to the history, and publishes messages and events.
local function finish(answers)
  local written, gone = {}, {}
  if epoch ~= stored[1] then
    written[#written + 1] = '\tmemory'
    written[#written + 1] = epoch
  end
  for _, r in pairs(loaded) do
    local value = r.lone or r.shared
    if not value and is_empty(r) then
      if sub(r.value or '1', 1, 1) ~= '1' or #r.deleted_ids > 0 then
        call('DEL', r.entries, r.order, r.ends)
      end
    elseif not value and is_plain(r) then
      value = format('s1 %010.0f %s %s %s', r.used, r.not_before or first_of_all(r), r.fence, r.shape)
      call('DEL', r.order, r.ends)
      flush(r, true)
    elseif not value then
      flush(r)
      local not_before = r.not_before or first_of_all(r)
      value = format('q1 %.0f %.0f %.0f %.0f %s %s %s',
        r.ticket, r.used, r.waiting, r.skipped_to, not_before, r.fence, r.shape)
    end
    if not value and r.value then
      -- Also where the record that had it was lost.
      raise_highest_fence(r.fence)
      gone[#gone + 1] = r.name
    elseif value and value ~= r.value then
      written[#written + 1] = r.name
      written[#written + 1] = value
    end
  end
  if highest ~= (stored[2] or NO_FENCE) then
    written[#written + 1] = '\tfence'
    written[#written + 1] = highest
  end
  if #gone > 0 then
    call('HDEL', KEYS[1], unpack(gone))
  end
  if #written > 0 then
    call('HSET', KEYS[1], unpack(written))
  end
  append_history(ended)
  for instance, message in pairs(messages) do
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
