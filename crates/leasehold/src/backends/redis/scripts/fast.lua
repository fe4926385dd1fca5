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

local byte, releases, questions, slots = string.byte, ARGV[4] + 0, ARGV[5] + 0, ARGV[6]
local heads = 10 + (slots == '' and questions or sub(slots, 1, 4))
local stored = call('HMGET', KEYS[1], unpack(ARGV, 7, heads))
if stored[1] ~= ARGV[1] then
  return 'begin'
end
-- The value of the name ARGV[n] is values[n - 6].
local values, shared, queues = stored, nil, nil
local events = stored[3] and stored[3] > nows and {}
local sweep = (not stored[4] or sub(stored[4], 1, 16) <= nows) and 's' or '-'

for at = 5, heads - 6 do
  local value = values[at]
  local form = value and byte(value)
  if form == 115 or form == 113 then
    local prefix, name = sub(KEYS[1], 1, -7), ARGV[at + 6]
    local entries, order, ends = prefix .. 'entries:' .. name, prefix .. 'order:' .. name, prefix .. 'ends:' .. name
    local used = #value == 59 and sub(value, 1, 2) == 's1' and tonumber(sub(value, 4, 13))
    local ticket, taken, waiting, not_before, fence, shape =
      string.match(value, '^q1 (%d+) (%d+) (%d+) 0 (%d+) (%d+) (%S+)$')
    -- A key that was evicted, or has moved to another server already, is left to the full script.
    local is_queue = ticket and not_before > nows and redis.pcall('EXISTS', entries, order, ends) == 3
    local known, ids = {}, {}
    if used or is_queue then
      for i = 1, questions do
        if at == 4 + (slots == '' and i or sub(slots, 4 * i + 1, 4 * i + 4)) then
          ids[#ids + 1] = sub(ARGV[heads + i], 2, 33)
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
        entries = entries, order = order, ends = ends, known = known, put = {}, ranks = {}, stops = {}, cut = nil,
        ticket = ticket + 0, used = taken, waiting = waiting + 0, not_before = not_before, fence = fence, shape = shape,
      }
    end
  end
end

-- `highest`: the highest fence of a lease that has ended. `granted`: requests were, or they wait now. `texts` are those of
-- the answer, `mail` is pushed at the end.
local highest, granted, texts, mail = stored[2] or '', false, {}, {}
local function next_fence(above, floor)
  local fence = above >= nows and format('%016.0f', above + 1) or nows
  if floor > fence then
    fence = format('%016.0f', math.max(fence, math.min(floor, nows + 10000000)))
  end
  return fence
end
local ended, remembered, freed, free = {}, 0, {}, 0
if releases > 0 then
  local which, released = sub(ARGV[2], 2, 2), nows .. ' released\n'
  for i = 1, releases do
    local head, how, answer = ARGV[heads + i], nil, 's'
    if #head > 33 then
      head, how = sub(head, 1, 33), sub(head, 34)
    end
    local at = 4 + (slots == '' and i or sub(slots, 4 * i + 1, 4 * i + 4))
    local s, held, q, heir = shared and shared[at], values[at], queues and queues[at], nil
    if s then
      held = s.entries[sub(head, 2)]
    elseif q and not q.cut then
      -- Its one holder hands it to the first who waits, if that one takes all of it, too.
      local capacity = sub(q.shape, 1, 10)
      held = q.known[sub(head, 2)] or ''
      if sub(held, 69, 84) > '0000000000000000' and sub(held, 35, 50) > nows and sub(held, 163, 172) == capacity then
        local first = call('ZRANGEBYSCORE', q.order, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        local record = first[1] and call('HGET', q.entries, first[1]) or ''
        local to = sub(KEYS[1], 1, -7) .. 'to:' .. sub(record, 176, 191)
        local push = sub(ARGV[2], 1, 1)
        if sub(record, 35, 50) > nows and sub(record, 163, 172) == capacity
          and (push == 'B' or tonumber(call('PUBSUB', push == 'S' and 'SHARDNUMSUB' or 'NUMSUB', to)[2]) > 0) then
          local fence = next_fence(q.fence > highest and q.fence or highest, sub(record, 134, 149))
          heir = sub(record, 1, 68) .. fence .. sub(record, 85, 102) .. nows .. sub(record, 119)
          q.cut, q.waiting, q.fence = sub(head, 2), q.waiting - 1, fence
          q.known[q.cut] = false
          q.put[1], q.put[2] = first[1], heir
          q.ranks[1], q.ranks[2] = format('%.0f', first[2] - 4503599627370496), first[1]
          mail[#mail + 1], mail[#mail + 2] = to, 'granted ' .. first[1] .. ' ' .. fence .. ' ' .. ARGV[at + 6]
        end
      end
    end
    if q and not heir then
      answer = 's'
    elseif not held then
      answer = 'g'
    elseif sub(held, 1, 33) == head and sub(held, 35, 50) > nows then
      answer = 'f'
      if sub(held, 69, 84) > highest then
        highest = sub(held, 69, 84)
      end
      if s then
        s.used = s.used - sub(held, 163, 172)
        s.entries[sub(head, 2)] = nil
        s.removed[#s.removed + 1] = sub(head, 2)
      elseif not heir then
        values[at] = false
        free = free + 1
        freed[free] = at
      end
      if which == 'a' or which == 'p' and how and how ~= 'cancelled' then
        ended[remembered + 1] = (how and nows .. ' ' .. how .. '\n' or released) .. ARGV[at + 6]
        remembered = remembered + 2
        ended[remembered] = held
      end
      if events then
        events[#events + 1] = string.match(how or 'released', '^%S+') .. ' ' .. nows .. '\n' .. ARGV[at + 6] .. '\n' .. held
        if heir then
          events[#events + 1] = 'acquired ' .. nows .. '\n' .. ARGV[at + 6] .. '\n' .. heir
        end
      end
    elseif byte(held) == 49 and sub(held, 35, 50) > nows then
      answer = 'g'
    end
    ARGV[heads + i] = answer
  end
end

local written, length = { '\tfence', '' }, 2
if questions > releases then
  local i, group = releases, heads + questions + 1
  while ARGV[group] do
    local tail, patience = ARGV[group], ARGV[group + 1]
    local stop, floor = format('%016.0f', nows + sub(tail, 1, 13)), sub(tail, 15, 30)
    local fence = next_fence(highest, floor)
    local before, behind = ' ' .. stop .. ' ' .. nows .. ' ', ' ' .. nows .. ' ' .. nows .. ' ' .. tail
    for request = 1, #patience do
      i = i + 1
      local head, answer = ARGV[heads + i], 'slow            '
      local at = 4 + (slots == '' and i or sub(slots, 4 * i + 1, 4 * i + 4))
      local s, held, q = shared and shared[at], values[at], queues and queues[at]
      local fits = not held
      if q and sub(patience, request, request) == 'q' and q.shape == sub(tail, 32, 42) and not q.known[sub(head, 2)]
        and q.used + 0 == tonumber(sub(q.shape, 1, 10)) then
        local id, put = sub(head, 2), q.put
        local record = head .. before .. '0000000000000000 ' .. nows .. ' 0000000000000000 ' .. tail
        -- When the first of all others ends.
        local ends = call('ZRANGE', q.ends, 0, 1, 'WITHSCORES')
        local first = ends[1] ~= q.cut and ends[2] or ends[4]
        for other = 1, #q.stops, 2 do
          first = math.min(first or q.stops[other], q.stops[other])
        end
        if stop < q.not_before then
          q.not_before = stop
        end
        answer = 'queued          '
        texts[#texts + 1] = format('%.0f %s %.0f', q.waiting, q.fence, first - nows)
        q.ticket, q.waiting, q.known[id], granted = q.ticket + 1, q.waiting + 1, record, true
        put[#put + 1], put[#put + 2] = id, record
        q.ranks[#q.ranks + 1], q.ranks[#q.ranks + 2] = format('%.0f', q.ticket), id
        q.stops[#q.stops + 1], q.stops[#q.stops + 2] = stop, id
        if events then
          events[#events + 1] = 'waiting ' .. nows .. '\n' .. ARGV[at + 6] .. '\n' .. record
        end
      elseif held and not q then
        if not s and byte(held) == 49 and sub(held, 35, 50) > nows and sub(held, 151, 161) == sub(tail, 32, 42)
          and sub(held, 1, 33) ~= head then
          local used, units, capacity = tonumber(sub(held, 163, 172)), sub(tail, 44, 53), tonumber(sub(held, 151, 160))
          local key = sub(KEYS[1], 1, -7) .. 'entries:' .. ARGV[at + 6]
          -- A key that is on its way to another server cannot be written: that is left to the full script.
          if used + units <= capacity and redis.pcall('EXISTS', key) == 0 then
            local id = sub(held, 2, 33)
            s = {
              key = key, entries = { [id] = held }, added = { id, held },
              removed = {}, used = used, first = sub(held, 35, 50), fence = sub(held, 69, 84), shape = sub(held, 151, 161),
            }
            shared = shared or {}
            shared[at] = s
          elseif used == capacity and sub(patience, request, request) == 't' then
            answer = 'busy            '
            texts[#texts + 1] = held
          end
        end
        fits = s and s.first > nows and s.shape == sub(tail, 32, 42) and not s.entries[sub(head, 2)]
          and s.used + sub(tail, 44, 53) <= tonumber(sub(s.shape, 1, 10))
      end
      if fits then
        answer = held and next_fence(s.fence > highest and s.fence or highest, floor) or fence
        granted = true
        local record = head .. before .. answer .. behind
        if held then
          local added, id = s.added, sub(head, 2)
          added[#added + 1], added[#added + 2] = id, record
          s.entries[id], s.used, s.fence = record, s.used + sub(tail, 44, 53), answer
          if stop < s.first then
            s.first = stop
          end
        else
          values[at] = record
          written[length + 1] = ARGV[at + 6]
          length = length + 2
          written[length] = record
        end
        if events then
          events[#events + 1] = 'acquired ' .. nows .. '\n' .. ARGV[at + 6] .. '\n' .. record
        end
      end
      ARGV[heads + i] = answer
    end
    group = group + 2
  end
end

if shared then
  for at, s in pairs(shared) do
    if s.used == 0 then
      values[at] = false
      free = free + 1
      freed[free] = at
    elseif #s.added + #s.removed > 0 then
      written[length + 1] = ARGV[at + 6]
      length = length + 2
      written[length] = format('s1 %010.0f %s %s %s', s.used, s.first, s.fence, s.shape)
    end
  end
end
if queues then
  for at, q in pairs(queues) do
    if #q.put > 0 then
      written[length + 1] = ARGV[at + 6]
      length = length + 2
      written[length] = format('q1 %.0f %s %.0f 0 %s %s %s', q.ticket, q.used, q.waiting, q.not_before, q.fence, q.shape)
      if q.cut and not granted then
        -- Never refused, and nothing after it is: a lock is handed on when memory is full.
        call('HDEL', q.entries, q.cut)
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
    return { nows .. '-' .. string.rep('s', releases) .. string.rep('slow            ', questions - releases) }
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
  for _, s in pairs(shared) do
    if #s.removed > 0 then
      call('HDEL', s.key, unpack(s.removed))
    end
    if #s.added > 0 then
      call('HSET', s.key, unpack(s.added))
    end
  end
end
if not granted and (length > 2 or highest ~= (stored[2] or '')) then
  written[2] = highest
  call('HSET', KEYS[1], unpack(written, highest == '' and 3 or 1))
end
if queues then
  for _, q in pairs(queues) do
    if q.cut then
      call('HDEL', q.entries, q.cut)
      call('ZREM', q.order, q.cut)
      call('ZREM', q.ends, q.cut)
    end
    if #q.put > 0 then
      call('HSET', q.entries, unpack(q.put))
      call('ZADD', q.order, unpack(q.ranks))
    end
    if #q.stops > 0 then
      call('ZADD', q.ends, unpack(q.stops))
    end
  end
end
-- Sixteen leases in one entry of the stream, which is trimmed by entries.
for first = 1, remembered, 32 do
  call('XADD', KEYS[2], 'MAXLEN', '~', sub(ARGV[2], 3, 8) + 0, '*', unpack(ended, first, math.min(remembered, first + 31)))
end
for i = 1, #mail, 2 do
  call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', mail[i], mail[i + 1])
end
if events and #events > 0 then
  call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[3], table.concat(events, '\30'))
end
return { nows .. sweep .. table.concat(ARGV, '', heads + 1, heads + questions), unpack(texts) }
