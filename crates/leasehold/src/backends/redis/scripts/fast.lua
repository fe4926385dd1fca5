-- Decides what is common: releases, requests for names that nobody has, requests to share a name while nobody waits for
-- it, and tries where one holder has all of it. Where one holder has all of a name and others wait, it also hands the name
-- on and lets further requests wait.
--
-- Redis hashes every byte of a string that a script makes, and a table costs time whenever it grows. So names are read
-- straight from the arguments, and the answer to a question takes the place of its head.
--
-- KEYS    1 leases  2 history
-- ARGV    3 channel of events  4 how many releases  5 how many questions: releases, then requests
--         6 empty if each question has a name of its own, in their order; else how many names, and the number of the
--         name of each question, in 4 columns each  7 `\tmemory`  8 `\tfence`  9 `\twatched`  10 `\tsweep`
--         then the names; then of each question the head of its record (form and id), and behind that of a release the
--         ending and the problem as JSON, unless it was just released
--         then for requests with the same tail of their records: the tail; the patience of each, a letter: t try,
--         q queue, b queue if few enough are ahead, which the full script decides
-- answer  {columns, then a text for each request that is busy or queued}; columns: now(1-16), s if a sweep is due(17), a
--         letter for each release: f freed, g gone, s slow, for the full script to decide; and 16 for each request: its
--         fence, or slow, or busy (its text is the record of the holder), or queued (how many are ahead, the newest
--         fence, µs until the first end)
--@ head.lua

local byte, releases, questions, name_numbers = string.byte, ARGV[4] + 0, ARGV[5] + 0, ARGV[6]
local last_name = 10 + (name_numbers == '' and questions or sub(name_numbers, 1, 4))
local stored = call('HMGET', KEYS[1], unpack(ARGV, 7, last_name))
if stored[1] ~= ARGV[1] then
  return 'begin'
end
-- The value of the name ARGV[n] is values[n - 6].
local values, shared, queues = stored, nil, nil
local events = stored[3] and stored[3] > now_text and {}
local sweep = (not stored[4] or sub(stored[4], 1, 16) <= now_text) and 's' or '-'

for at = 5, last_name - 6 do
  local value = values[at]
  local form = value and byte(value)
  if form == 115 or form == 113 then
    local prefix, name = sub(KEYS[1], 1, -7), ARGV[at + 6]
    local entries, order, ends = prefix .. 'entries:' .. name, prefix .. 'order:' .. name, prefix .. 'ends:' .. name
    local used = #value == 59 and sub(value, 1, 2) == 's1' and tonumber(sub(value, 4, 13))
    local ticket, taken, waiting, not_before, fence, shape =
      string.match(value, '^q1 (%d+) (%d+) (%d+) 0 (%d+) (%d+) (%S+)$')
    -- A key that was evicted, or has moved to another server already, is left to the full script.
    local is_queue = ticket and not_before > now_text and redis.pcall('EXISTS', entries, order, ends) == 3
    local known, ids = {}, {}
    if used or is_queue then
      for i = 1, questions do
        if at == 4 + (name_numbers == '' and i or sub(name_numbers, 4 * i + 1, 4 * i + 4)) then
          ids[#ids + 1] = sub(ARGV[last_name + i], 2, 33)
        end
      end
      for i, record in ipairs(call('HMGET', entries, unpack(ids))) do
        known[ids[i]] = record
      end
    end
    if used then
      shared = shared or {}
      shared[at] = {
        key = entries, entries = known, added = {}, removed = {},
        used = used, first = sub(value, 15, 30), fence = sub(value, 32, 47), shape = sub(value, 49, 59),
      }
    elseif is_queue then
      queues = queues or {}
      queues[at] = {
        entries = entries, order = order, ends = ends, known = known,
        put = {}, ranks = {}, expiries = {}, deleted_id = nil,
        ticket = ticket + 0, used = taken, waiting = waiting + 0, not_before = not_before, fence = fence, shape = shape,
      }
    end
  end
end

-- `highest`: the highest fence of a lease that has ended. `granted`: true if a request was granted or queued. `texts` are
-- those of the answer, `messages` are pushed at the end.
local highest, granted, texts, messages = stored[2] or '', false, {}, {}
local function next_fence(above, floor)
  local fence = above >= now_text and format('%016.0f', above + 1) or now_text
  if floor > fence then
    fence = format('%016.0f', math.max(fence, math.min(floor, now_text + 10000000)))
  end
  return fence
end
local ended, remembered, freed, free = {}, 0, {}, 0
if releases > 0 then
  local history_mode, released = sub(ARGV[2], 2, 2), now_text .. ' released\n'
  for i = 1, releases do
    local head, ending, answer = ARGV[last_name + i], nil, 's'
    if #head > 33 then
      head, ending = sub(head, 1, 33), sub(head, 34)
    end
    local at = 4 + (name_numbers == '' and i or sub(name_numbers, 4 * i + 1, 4 * i + 4))
    local shared_state, held, queue, next_holder = shared and shared[at], values[at], queues and queues[at], nil
    if shared_state then
      held = shared_state.entries[sub(head, 2)]
    elseif queue and not queue.deleted_id then
      -- Its one holder hands it to the first who waits, if that one takes all of it, too.
      local capacity = sub(queue.shape, 1, 10)
      held = queue.known[sub(head, 2)] or ''
      if sub(held, 69, 84) > '0000000000000000' and sub(held, 35, 50) > now_text
        and sub(held, 163, 172) == capacity then
        local first = call('ZRANGEBYSCORE', queue.order, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        local record = first[1] and call('HGET', queue.entries, first[1]) or ''
        local to = sub(KEYS[1], 1, -7) .. 'to:' .. sub(record, 176, 191)
        local push = sub(ARGV[2], 1, 1)
        if sub(record, 35, 50) > now_text and sub(record, 163, 172) == capacity
          and (push == 'B' or tonumber(call('PUBSUB', push == 'S' and 'SHARDNUMSUB' or 'NUMSUB', to)[2]) > 0) then
          local fence = next_fence(queue.fence > highest and queue.fence or highest, sub(record, 134, 149))
          next_holder = sub(record, 1, 68) .. fence .. sub(record, 85, 102) .. now_text .. sub(record, 119)
          queue.deleted_id, queue.waiting, queue.fence = sub(head, 2), queue.waiting - 1, fence
          queue.known[queue.deleted_id] = false
          queue.put[1], queue.put[2] = first[1], next_holder
          queue.ranks[1], queue.ranks[2] = format('%.0f', first[2] - 4503599627370496), first[1]
          messages[#messages + 1], messages[#messages + 2] =
            to, 'granted ' .. first[1] .. ' ' .. fence .. ' ' .. ARGV[at + 6]
        end
      end
    end
    if queue and not next_holder then
      answer = 's'
    elseif not held then
      answer = 'g'
    elseif sub(held, 1, 33) == head and sub(held, 35, 50) > now_text then
      answer = 'f'
      if sub(held, 69, 84) > highest then
        highest = sub(held, 69, 84)
      end
      if shared_state then
        shared_state.used = shared_state.used - sub(held, 163, 172)
        shared_state.entries[sub(head, 2)] = nil
        shared_state.removed[#shared_state.removed + 1] = sub(head, 2)
      elseif not next_holder then
        values[at] = false
        free = free + 1
        freed[free] = at
      end
      if history_mode == 'a' or history_mode == 'p' and ending and ending ~= 'cancelled' then
        ended[remembered + 1] = (ending and now_text .. ' ' .. ending .. '\n' or released) .. ARGV[at + 6]
        remembered = remembered + 2
        ended[remembered] = held
      end
      if events then
        events[#events + 1] = string.match(ending or 'released', '^%S+') .. ' ' .. now_text .. '\n' .. ARGV[at + 6] .. '\n'
          .. held
        if next_holder then
          events[#events + 1] = 'acquired ' .. now_text .. '\n' .. ARGV[at + 6] .. '\n' .. next_holder
        end
      end
    elseif byte(held) == 49 and sub(held, 35, 50) > now_text then
      answer = 'g'
    end
    ARGV[last_name + i] = answer
  end
end

local written, length = { '\tfence', '' }, 2
if questions > releases then
  local i, group = releases, last_name + questions + 1
  while ARGV[group] do
    local tail, patience = ARGV[group], ARGV[group + 1]
    local expiry, floor = format('%016.0f', now_text + sub(tail, 1, 13)), sub(tail, 15, 30)
    local fence = next_fence(highest, floor)
    local before, behind = ' ' .. expiry .. ' ' .. now_text .. ' ', ' ' .. now_text .. ' ' .. now_text .. ' ' .. tail
    for request = 1, #patience do
      i = i + 1
      local head, answer = ARGV[last_name + i], 'slow            '
      local at = 4 + (name_numbers == '' and i or sub(name_numbers, 4 * i + 1, 4 * i + 4))
      local shared_state, held, queue = shared and shared[at], values[at], queues and queues[at]
      local fits = not held
      if queue and sub(patience, request, request) == 'q' and queue.shape == sub(tail, 32, 42)
        and not queue.known[sub(head, 2)]
        and queue.used + 0 == tonumber(sub(queue.shape, 1, 10)) then
        local id, put = sub(head, 2), queue.put
        local record = head .. before .. '0000000000000000 ' .. now_text .. ' 0000000000000000 ' .. tail
        -- When the first of all others ends.
        local ends = call('ZRANGE', queue.ends, 0, 1, 'WITHSCORES')
        local first = ends[1] ~= queue.deleted_id and ends[2] or ends[4]
        for other = 1, #queue.expiries, 2 do
          first = math.min(first or queue.expiries[other], queue.expiries[other])
        end
        if expiry < queue.not_before then
          queue.not_before = expiry
        end
        answer = 'queued          '
        texts[#texts + 1] = format('%.0f %s %.0f', queue.waiting, queue.fence, first - now_text)
        queue.ticket, queue.waiting, queue.known[id], granted = queue.ticket + 1, queue.waiting + 1, record, true
        put[#put + 1], put[#put + 2] = id, record
        queue.ranks[#queue.ranks + 1], queue.ranks[#queue.ranks + 2] = format('%.0f', queue.ticket), id
        queue.expiries[#queue.expiries + 1], queue.expiries[#queue.expiries + 2] = expiry, id
        if events then
          events[#events + 1] = 'waiting ' .. now_text .. '\n' .. ARGV[at + 6] .. '\n' .. record
        end
      elseif held and not queue then
        if not shared_state and byte(held) == 49 and sub(held, 35, 50) > now_text
          and sub(held, 151, 161) == sub(tail, 32, 42) and sub(held, 1, 33) ~= head then
          local used, units, capacity = tonumber(sub(held, 163, 172)), sub(tail, 44, 53), tonumber(sub(held, 151, 160))
          local key = sub(KEYS[1], 1, -7) .. 'entries:' .. ARGV[at + 6]
          -- A key that is on its way to another server cannot be written: that is left to the full script.
          if used + units <= capacity and redis.pcall('EXISTS', key) == 0 then
            local id = sub(held, 2, 33)
            shared_state = {
              key = key, entries = { [id] = held }, added = { id, held },
              removed = {}, used = used, first = sub(held, 35, 50), fence = sub(held, 69, 84), shape = sub(held, 151, 161),
            }
            shared = shared or {}
            shared[at] = shared_state
          elseif used == capacity and sub(patience, request, request) == 't' then
            answer = 'busy            '
            texts[#texts + 1] = held
          end
        end
        fits = shared_state and shared_state.first > now_text and shared_state.shape == sub(tail, 32, 42)
          and not shared_state.entries[sub(head, 2)]
          and shared_state.used + sub(tail, 44, 53) <= tonumber(sub(shared_state.shape, 1, 10))
      end
      if fits then
        answer = held and next_fence(shared_state.fence > highest and shared_state.fence or highest, floor) or fence
        granted = true
        local record = head .. before .. answer .. behind
        if held then
          local added, id = shared_state.added, sub(head, 2)
          added[#added + 1], added[#added + 2] = id, record
          shared_state.entries[id], shared_state.used, shared_state.fence =
            record, shared_state.used + sub(tail, 44, 53), answer
          if expiry < shared_state.first then
            shared_state.first = expiry
          end
        else
          values[at] = record
          written[length + 1] = ARGV[at + 6]
          length = length + 2
          written[length] = record
        end
        if events then
          events[#events + 1] = 'acquired ' .. now_text .. '\n' .. ARGV[at + 6] .. '\n' .. record
        end
      end
      ARGV[last_name + i] = answer
    end
    group = group + 2
  end
end

if shared then
  for at, shared_state in pairs(shared) do
    if shared_state.used == 0 then
      values[at] = false
      free = free + 1
      freed[free] = at
    elseif #shared_state.added + #shared_state.removed > 0 then
      written[length + 1] = ARGV[at + 6]
      length = length + 2
      written[length] = format('s1 %010.0f %s %s %s',
        shared_state.used, shared_state.first, shared_state.fence, shared_state.shape)
    end
  end
end
if queues then
  for at, queue in pairs(queues) do
    if #queue.put > 0 then
      written[length + 1] = ARGV[at + 6]
      length = length + 2
      written[length] = format('q1 %.0f %s %.0f 0 %s %s %s',
        queue.ticket, queue.used, queue.waiting, queue.not_before, queue.fence, queue.shape)
      if queue.deleted_id and not granted then
        -- HDEL first, so that a hand-over succeeds when memory is full.
        call('HDEL', queue.entries, queue.deleted_id)
      end
    end
  end
end
if granted then
  -- Redis checks its memory before the first write of a script only. On a full server the full script refuses the
  -- requests and lets the releases through.
  written[2] = highest
  local done = redis.pcall('HSET', KEYS[1], unpack(written, highest == '' and 3 or 1))
  if type(done) == 'table' and done.err then
    if not string.find(done.err, 'OOM') then
      return redis.error_reply(done.err)
    end
    return { now_text .. '-' .. string.rep('s', releases) .. string.rep('slow            ', questions - releases) }
  end
end
local gone = 0
for i = 1, free do
  -- A name that this call has granted again stays.
  if not values[freed[i]] then
    gone = gone + 1
    freed[gone] = ARGV[freed[i] + 6]
  end
end
if gone > 0 then
  call('HDEL', KEYS[1], unpack(freed, 1, gone))
end
if shared then
  for _, shared_state in pairs(shared) do
    if #shared_state.removed > 0 then
      call('HDEL', shared_state.key, unpack(shared_state.removed))
    end
    if #shared_state.added > 0 then
      call('HSET', shared_state.key, unpack(shared_state.added))
    end
  end
end
if not granted and (length > 2 or highest ~= (stored[2] or '')) then
  written[2] = highest
  call('HSET', KEYS[1], unpack(written, highest == '' and 3 or 1))
end
if queues then
  for _, queue in pairs(queues) do
    if queue.deleted_id then
      call('HDEL', queue.entries, queue.deleted_id)
      call('ZREM', queue.order, queue.deleted_id)
      call('ZREM', queue.ends, queue.deleted_id)
    end
    if #queue.put > 0 then
      call('HSET', queue.entries, unpack(queue.put))
      call('ZADD', queue.order, unpack(queue.ranks))
    end
    if #queue.expiries > 0 then
      call('ZADD', queue.ends, unpack(queue.expiries))
    end
  end
end
-- Sixteen leases in one entry of the stream, which is trimmed by entries.
for first = 1, remembered, 32 do
  call('XADD', KEYS[2], 'MAXLEN', '~', sub(ARGV[2], 3, 8) + 0, '*', unpack(ended, first, math.min(remembered, first + 31)))
end
for i = 1, #messages, 2 do
  call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', messages[i], messages[i + 1])
end
if events and #events > 0 then
  call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[3], table.concat(events, '\30'))
end
return { now_text .. sweep .. table.concat(ARGV, '', last_name + 1, last_name + questions), unpack(texts) }
