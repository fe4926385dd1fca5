-- The lease model for resources of one partition. To settle a resource is to end its expired entries, then to grant to
-- waiters from the front. Ports State::settle, Entry::prolong, State::standing and State::busy of model.rs. A resource
-- is read once, and its state written once, by `finish`.
--
-- KEYS  1 leases  2 history, then for each resource its entries
-- ARGV  3 channel of events  4 how many resources, then the name of each, then what is asked about them
local max, min = math.max, math.min
-- Stands for fence and time of acquiring in an entry that waits.
local NO_FENCE = '0000000000000000'
local NEVER = '9999999999999999'
-- How far a requested fence may be ahead of the clock, in µs.
local FENCE_LEAD = 10000000
-- About how many entries or tickets one call goes through, so that no call keeps the server busy for long.
local MAX_HANDLED = 1000
-- In a longer queue, a waiter may be told to ask again before anything in its way ends.
local MAX_EXACT = 20

local now = tonumber(now_text)
local push = sub(ARGV[2], 1, 1)
local prefix = sub(KEYS[1], 1, -7)
local resources = tonumber(ARGV[4])
local stored = call('HMGET', KEYS[1], '\tmemory', '\tfence', '\twatched', unpack(ARGV, 5, 4 + resources))
if stored[1] ~= ARGV[1] then
  return 'other_epoch'
end
local epoch = stored[1]
local highest = stored[2] or NO_FENCE
local watched = stored[3] and stored[3] > now_text
local resources_read, ended, events, reached, messages = {}, {}, {}, {}, {}
local unsettled = false

local function digits(number)
  return format('%016.0f', number)
end

-- Raises `highest` to the fence of a lease that has ended.
local function raise_highest_fence(fence)
  if fence > highest then
    highest = fence
  end
end

-- Returns when a lease that begins now with this ttl ends.
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

-- Whether a push reaches the instance of an entry. Count before publishing: a subscriber at a replica is not counted
-- but gets the message, and would believe in a grant that goes to the next waiter.
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
  return r.used == 0 and r.waiting == 0 and not r.lone
end

local function reset(r)
  r.used, r.waiting, r.first, r.last, r.not_before, r.fence, r.shape = 0, 0, 1, 0, NEVER, NO_FENCE, ''
  -- The record of the holder, if there is exactly one; several are among the entries.
  r.holder = nil
  -- `skipped`: the last ticket skipped as unreachable. `cursor` and `found`: where an unfinished search for expired
  -- entries goes on, and the earliest end that it has found.
  r.skipped, r.cursor, r.found = 0, '0', NEVER
  -- `fields`: what this call knows of the entries, `false` for fields that do not exist. `knows_all`: any other field
  -- does not exist. `changed`: the fields that `flush` has to write or delete. `has_flushed`: whether `flush` has run.
  r.fields, r.knows_all, r.changed = {}, true, {}
end

-- The resource with this number; `nil` if a newer version wrote it. If the key of its entries is used for something
-- else, `foreign` is the error that answers each question about it.
local function resource(at)
  if resources_read[at] then
    return resources_read[at]
  end
  local value = stored[3 + at]
  local r = { name = ARGV[4 + at], entries = KEYS[2 + at], value = value }
  reset(r)
  local used, waiting, first, last, not_before, fence, shape, more, holder =
    string.match(value or '', '^q2.(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%w+)([^\n]*)\n(.*)$')
  local kind = used and (tonumber(waiting) > 0 or holder == '') and call('TYPE', r.entries).ok
  if kind and kind ~= 'none' and kind ~= 'hash' then
    r.foreign = 'WRONGTYPE the key ' .. r.entries .. ' is in use for something else'
  elseif kind == 'none' then
    -- Redis evicted the entries of this resource: a new epoch of the partition begins now. The holder is still known if
    -- there is exactly one; those who wait are lost.
    epoch = sub(epoch, 1, 43) .. now_text
    raise_highest_fence(fence)
    r.lone = holder ~= '' and holder or nil
  elseif used then
    r.used, r.waiting, r.first, r.last = tonumber(used), tonumber(waiting), tonumber(first), tonumber(last)
    r.not_before, r.fence, r.shape, r.holder = not_before, fence, shape, holder ~= '' and holder or nil
    r.knows_all = r.waiting == 0 and r.holder ~= nil
    local skipped, cursor, found = string.match(more, '^ (%d+) (%d+) (%d+)$')
    if skipped then
      r.skipped, r.cursor, r.found = tonumber(skipped), cursor, found
    end
  elseif value and sub(value, 1, 1) == '1' then
    r.lone = value
  elseif value then
    return nil
  end
  resources_read[at] = r
  return r
end

-- Reads these fields of the entries.
local function read(r, names)
  local unknown = {}
  for _, name in ipairs(names) do
    if r.fields[name] == nil then
      unknown[#unknown + 1] = name
    end
  end
  for at = 1, r.knows_all and 0 or #unknown, 2000 do
    for i, value in ipairs(call('HMGET', r.entries, unpack(unknown, at, min(#unknown, at + 1999)))) do
      r.fields[unknown[at + i - 1]] = value
    end
  end
end

local function field(r, name)
  if r.fields[name] == nil then
    r.fields[name] = not r.knows_all and call('HGET', r.entries, name)
  end
  return r.fields[name]
end

-- Changes a field; `false` deletes it.
local function set_field(r, name, value)
  r.fields[name], r.changed[name] = value, true
end

-- Reads the fields of these tickets; returns their names.
local function read_tickets(r, from, to)
  local names = {}
  for ticket = from, to do
    names[#names + 1] = format('%.0f', ticket)
  end
  read(r, names)
  return names
end

-- The record with this id, and the ticket if it waits.
local function entry(r, id)
  if r.holder and sub(r.holder, 2, 33) == id then
    return r.holder
  end
  local value = field(r, id)
  if value and #value <= 16 then
    return field(r, value), value
  end
  return value
end

local function put(r, id, record, ticket)
  if r.holder and sub(r.holder, 2, 33) == id then
    r.holder = record
  else
    set_field(r, ticket or id, record)
  end
end

-- A waiter has left the queue.
local function leave_queue(r, ticket)
  set_field(r, ticket, false)
  r.waiting, r.positions = r.waiting - 1, nil
  if r.waiting == 0 then
    r.first = r.last + 1
  elseif tonumber(ticket) == r.first then
    r.first = r.first + 1
  end
end

-- Writes what has changed of the entries.
local function flush(r)
  local deleted, written = {}, {}
  for name in pairs(r.changed) do
    if r.fields[name] then
      written[#written + 1] = name
      written[#written + 1] = r.fields[name]
    else
      deleted[#deleted + 1] = name
    end
  end
  if r.knows_all and not r.has_flushed then
    call('DEL', r.entries)
  end
  for at = 1, #deleted, 2000 do
    call('HDEL', r.entries, unpack(deleted, at, min(#deleted, at + 1999)))
  end
  for at = 1, #written, 2000 do
    call('HSET', r.entries, unpack(written, at, min(#written, at + 1999)))
  end
  r.changed, r.has_flushed = {}, true
end

-- Some of the entries, each as {record, id, ticket if it waits}, and the cursor of the next ones.
local function scan(r, cursor, count)
  if next(r.changed) then
    flush(r)
  end
  local scanned = call('HSCAN', r.entries, cursor, 'COUNT', count)
  local found, flat, seen = {}, scanned[2], {}
  for i = 1, #flat, 2 do
    if #flat[i + 1] > 16 and not seen[flat[i]] then
      seen[flat[i]] = true
      found[#found + 1] = { flat[i + 1], sub(flat[i + 1], 2, 33), #flat[i] <= 16 and flat[i] or nil }
    end
  end
  return scanned[1], found
end

-- Ends an entry.
local function remove(r, id, record, ticket, ending, at, problem)
  local units = 0 + sub(record, 163, 172)
  if r.holder and sub(r.holder, 2, 33) == id then
    r.holder = nil
  else
    set_field(r, id, false)
  end
  if ticket then
    leave_queue(r, ticket)
  else
    r.used = r.used - units
    raise_highest_fence(sub(record, 69, 84))
  end
  if is_remembered(ending) then
    ended[#ended + 1] = at .. ' ' .. ending .. problem .. '\n' .. r.name
    ended[#ended + 1] = record
  end
  add_event(ending, at, r, record)
end

-- Turns the record of a lone holder into the state of a name with a queue.
local function build_queue(r)
  local record = r.lone
  if record then
    r.used, r.not_before = 0 + sub(record, 163, 172), sub(record, 35, 50)
    r.fence, r.shape, r.holder, r.lone = sub(record, 69, 84), sub(record, 151, 161), record, nil
  end
end

-- Notes when a new entry ends.
local function add_end(r, expiry)
  r.not_before = r.not_before < expiry and r.not_before or expiry
  r.found = r.found < expiry and r.found or expiry
end

-- An entry moves to another field, which an unfinished search for expired entries may have passed already.
local function keep_end(r, record)
  if r.cursor ~= '0' then
    add_end(r, sub(record, 35, 50))
  end
end

local function expire(r)
  if r.expired or is_empty(r) or r.not_before > now_text then
    return
  end
  r.expired = true
  local entries, expired = {}, {}
  if not r.knows_all then
    r.cursor, entries = scan(r, r.cursor, 2 * MAX_HANDLED)
    unsettled = unsettled or r.cursor ~= '0'
  end
  if r.holder then
    entries[#entries + 1] = { r.holder, sub(r.holder, 2, 33) }
  end
  for _, one in ipairs(entries) do
    local expiry = sub(one[1], 35, 50)
    if expiry <= now_text then
      expired[#expired + 1] = one
    elseif expiry < r.found then
      r.found = expiry
    end
  end
  table.sort(expired, function(one, other)
    return sub(one[1], 35, 50) < sub(other[1], 35, 50)
  end)
  for _, one in ipairs(expired) do
    remove(r, one[2], one[1], one[3], 'expired', sub(one[1], 35, 50), '')
  end
  if r.cursor == '0' then
    r.not_before, r.found = r.found, NEVER
  end
end

-- The fence of a record's grant: above those of its name that hold, and above those that have ended.
local function next_fence(r, record)
  return digits(max(highest + 1, r.fence + 1, now, min(tonumber(sub(record, 134, 149)), now + FENCE_LEAD)))
end

-- Grants an entry. `ticket` is its ticket if it waited, nil if it is new.
local function hold(r, id, record, ticket, fence)
  local units = 0 + sub(record, 163, 172)
  r.fence = fence or next_fence(r, record)
  record = sub(record, 1, 68) .. r.fence .. sub(record, 85, 102) .. now_text .. sub(record, 119)
  if ticket then
    leave_queue(r, ticket)
    set_field(r, id, false)
    keep_end(r, record)
  end
  if r.used == 0 then
    r.holder = record
  else
    if r.holder then
      set_field(r, sub(r.holder, 2, 33), r.holder)
      r.holder = nil
    end
    set_field(r, id, record)
  end
  r.used = r.used + units
  add_event('acquired', now_text, r, record)
  return record
end

-- Grants from the front while units fit. Waiters whose instance cannot be reached are skipped until one of them asks
-- again: each call goes on where the last one stopped.
local function grant(r, asker)
  local capacity = tonumber(sub(r.shape, 1, 10))
  local scanned, batch_size, ticket = 0, 1, max(r.first, r.skipped + 1)
  while r.waiting > 0 and r.used < capacity and ticket <= r.last do
    if scanned >= MAX_HANDLED then
      unsettled = true
      return
    end
    local names = read_tickets(r, ticket, min(r.last, ticket + batch_size - 1))
    for _, name in ipairs(names) do
      local record = field(r, name)
      if record then
        local id, instance, units = sub(record, 2, 33), sub(record, 176, 191), tonumber(sub(record, 163, 172))
        local fits = r.used + units <= capacity
        if not fits and (id == asker or is_present(instance)) then
          return
        end
        local fence = fits and next_fence(r, record)
        if fits and sub(record, 35, 50) > now_text
          and (id == asker or notify(instance, 'granted ' .. id .. ' ' .. fence .. ' ' .. r.name)) then
          hold(r, id, record, name, fence)
        else
          r.skipped = tonumber(name)
        end
      end
      if r.used >= capacity then
        break
      end
    end
    ticket, scanned, batch_size = ticket + #names, scanned + #names, 100
  end
end

-- The record of an entry after settling, and its ticket if it waits. Its instance has just asked, so it is not skipped.
local function settle(r, id)
  build_queue(r)
  local record, ticket
  if id and not is_empty(r) then
    record, ticket = entry(r, id)
  end
  if record and ticket then
    r.skipped = min(r.skipped, ticket - 1)
  end
  expire(r)
  grant(r, id)
  if record then
    record, ticket = entry(r, id)
  end
  return record and sub(record, 35, 50) > now_text and record, ticket
end

-- End = now + ttl, never shorter than the end already given.
local function prolong(record, ttl)
  local later = end_of(ttl)
  if later > sub(record, 35, 50) then
    return sub(record, 1, 34) .. later .. ' ' .. now_text .. sub(record, 68, 119) .. ttl .. sub(record, 133)
  end
  return sub(record, 1, 51) .. now_text .. sub(record, 68)
end

-- The records of those who hold, in the order of their requests; with a limit, only some of many.
local function holders(r, limit)
  if r.holder or r.used == 0 then
    return { r.holder }, true
  end
  local cursor, found, records, seen = '0', nil, {}, {}
  repeat
    cursor, found = scan(r, cursor, 10 * (limit or 100))
    for _, one in ipairs(found) do
      if not one[3] and not seen[one[2]] then
        seen[one[2]] = true
        records[#records + 1] = one[1]
      end
    end
  until cursor == '0' or limit
  table.sort(records, function(one, other)
    return sub(one, 86, 101) .. sub(one, 69, 84) < sub(other, 86, 101) .. sub(other, 69, 84)
  end)
  return records, cursor == '0'
end

-- How many waiters are before this ticket. Above MAX_HANDLED waiters, those who have left count, too.
local function ahead_of(r, ticket)
  if r.last - r.first + 1 == r.waiting or r.waiting > MAX_HANDLED then
    return min(ticket - r.first, r.waiting - 1)
  end
  if not r.positions then
    r.positions = {}
    local ahead = 0
    for _, name in ipairs(read_tickets(r, r.first, r.last)) do
      if field(r, name) then
        r.positions[name], ahead = ahead, ahead + 1
      end
    end
  end
  return r.positions[ticket]
end

-- When the first of those in the way of this ticket ends, or earlier.
local function first_end(r, ticket)
  local records, is_all = holders(r, 20)
  if r.waiting > MAX_EXACT or not is_all then
    return r.not_before
  end
  for _, name in ipairs(read_tickets(r, r.first, ticket - 1)) do
    records[#records + 1] = field(r, name) or nil
  end
  local first = NEVER
  for _, record in ipairs(records) do
    first = sub(record, 35, 50) < first and sub(record, 35, 50) or first
  end
  return first
end

-- How an entry stands: 'holding', fence, acquired; 'waiting', ahead, newest fence, µs until the first end, or ''; or
-- 'gone'.
local function standing(r, record, ticket)
  if not record then
    return { 'gone' }
  end
  if not ticket then
    return { 'holding', sub(record, 69, 84), sub(record, 103, 118) }
  end
  local first = first_end(r, ticket)
  return {
    'waiting', format('%.0f', ahead_of(r, ticket)), r.fence, first == NEVER and '' or format('%.0f', max(0, first - now)),
  }
end

-- Answers one request. Errors of one resource become its answer; server errors abort the script.
local function try(ask, r, ...)
  if not r then
    return { 'newer' }
  end
  if r.foreign then
    return { 'error', r.foreign }
  end
  local done, answer = pcall(ask, r, ...)
  if done then
    return answer
  end
  local text = type(answer) == 'table' and answer.err or tostring(answer)
  if string.find(text, 'attempt to') or string.find(text, 'bad argument') then
    return { 'error', text }
  end
  error(answer, 0)
end

-- Gives waiters new tickets where those in use are far apart.
local function renumber(r)
  local skipped = 0
  for _, name in ipairs(read_tickets(r, r.first, r.last)) do
    local record = field(r, name)
    if record then
      r.last = r.last + 1
      local ticket = format('%.0f', r.last)
      set_field(r, name, false)
      set_field(r, ticket, record)
      set_field(r, sub(record, 2, 33), ticket)
      keep_end(r, record)
      skipped = tonumber(name) <= r.skipped and r.last or skipped
    end
  end
  r.first, r.skipped = r.last - r.waiting + 1, skipped
end

-- Whether the fast scripts can handle it: no waiter was skipped, and no search for expired entries is left.
local function is_fast(r)
  return r.skipped < r.first and r.cursor == '0' and not r.foreign
end

-- Writes the entries of a resource; returns its value, or `nil` if nothing is left of it.
local function store(r)
  if r.lone then
    return r.lone
  end
  while r.waiting > 0 and r.first <= r.last and not field(r, format('%.0f', r.first)) do
    r.first = r.first + 1
  end
  if r.first > r.last then
    r.waiting = 0
  end
  if r.waiting == 0 and (r.holder or r.used == 0) then
    if not r.knows_all or r.has_flushed then
      call('DEL', r.entries)
    end
    return r.holder
  end
  if r.last - r.first > 2 * r.waiting + MAX_HANDLED then
    renumber(r)
  end
  flush(r)
  return format('q2%s%010.0f %010.0f %016.0f %016.0f %s %s %s%s\n%s', is_fast(r) and ' ' or '*',
    r.used, r.waiting, r.first, r.last, r.not_before, r.fence, r.shape,
    is_fast(r) and '' or format(' %.0f %s %s', r.skipped, r.cursor, r.found), r.holder or '')
end

-- Writes what has changed, appends ended leases to the history, and publishes messages and events.
local function finish(answers)
  local written, gone = {}, {}
  if epoch ~= stored[1] then
    written[#written + 1] = '\tmemory'
    written[#written + 1] = epoch
  end
  for _, r in pairs(resources_read) do
    local value = r.foreign and r.value or store(r)
    if not value and r.value then
      -- Needed if the record with that fence was lost.
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

-- Nothing is answered under an epoch that is over: the client asks again in the new one.
for at = 1, resources do
  resource(at)
end
if epoch ~= stored[1] then
  call('HDEL', KEYS[1], '\tnothing')
  return finish('other_epoch')
end
