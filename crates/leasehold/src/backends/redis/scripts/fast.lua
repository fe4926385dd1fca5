-- Decides the common cases. A question is a release or a request. The main part answers releases of lone holders and
-- requests for free names; `serve` answers questions about names with several holders, a queue, or several questions.
--
-- Redis hashes every byte of a string that a script makes, and a table costs as much as a small command, and more
-- whenever it grows. So names are read straight from the arguments, the answer to a question replaces its head in ARGV,
-- and a table is made only once something goes into it.
--
-- KEYS    1 leases  2 history
-- ARGV    3 channel of events
--         4 numbers in base 64, two characters each; the character of a digit has the code of '0' plus the digit: how
--         many releases; how many questions, which are releases, then requests; and unless each question has a name of
--         its own: how many names, and for each question the number of its name
--         then the names; then of each question the head of its record (form and id), followed in a release by the
--         ending and the problem as JSON, unless the ending is `released`
--         then for requests in a row with the same tail of their records: the tail; the patience of each, a letter:
--         t try, q queue, b queue if few enough are ahead, which the full script decides
-- answer  columns, or {columns, then a text for each request that is busy or queued}; columns: now(1-16), s if a sweep
--         is due(17), a letter for each release: f freed, g gone, s slow, for the full script to decide; and 16 for
--         each request: its fence, or slow, or busy (its text: how many wait, the record of the holder), or queued (its
--         text: how many are ahead, the newest fence, µs until the first end or less)
--@ prelude.lua

local byte = string.byte
local releases_high, releases_low, questions_high, questions_low, names_high, names_low = byte(ARGV[4], 1, 6)
-- 3120 is 65 times the code of '0'.
local releases, questions = 64 * releases_high + releases_low - 3120, 64 * questions_high + questions_low - 3120
local last_name = 4 + (names_high and 64 * names_high + names_low - 3120 or questions)
-- The value of the name ARGV[n] is values[n].
local values = call('HMGET', KEYS[1], '\tmemory', '\tfence', '\twatched', '\tsweep', unpack(ARGV, 5, last_name))
if values[1] ~= ARGV[1] then
  return 'other_epoch'
end
local events = values[3] and values[3] > now_text and {}
local sweep = (not values[4] or sub(values[4], 1, 16) <= now_text) and 's' or '-'
-- What is left to `serve`. `left`: by the index of a value, the numbers of the questions about its name. `tails`,
-- `patiences`: by the number of a request, its tail and its patience. `numbers`: by the number of a question, the index
-- of its value, unless each question has a name of its own.
local left, tails, patiences, numbers
if names_high then
  left, numbers = {}, {}
  local seen = {}
  for i = 1, questions do
    local high, low = byte(ARGV[4], 2 * i + 5, 2 * i + 6)
    local at = 64 * high + low - 3116
    -- The names begin at ARGV[5], so that 4 is added here. Several questions about one name are left to `serve`.
    left[at], seen[at], numbers[i] = seen[at] and {}, true, at
  end
end

-- `highest`: the highest fence of a lease that has ended. `granted`: whether a request was granted or queued.
local highest, granted = values[2] or '', false
local function next_fence(above, floor)
  local fence = above >= now_text and format('%016d', above + 1) or now_text
  if floor > fence then
    fence = format('%016d', math.max(fence, math.min(floor, now_text + 10000000)))
  end
  return fence
end
local history_mode = sub(ARGV[2], 2, 2)
local ended, remembered, freed, free = releases > 0 and {}, 0, releases > 0 and {}, 0
for i = 1, releases do
  local head, ending, answer = ARGV[last_name + i], nil, 's'
  if #head > 33 then
    head, ending = sub(head, 1, 33), sub(head, 34)
  end
  local at = numbers and numbers[i] or 4 + i
  local held, questions_left = values[at], left and left[at]
  -- 49 is the code of `1`, the form of a lone holder.
  if questions_left or held and (byte(held) ~= 49 or sub(held, 35, 50) <= now_text) then
    answer, questions_left = nil, questions_left or {}
    questions_left[#questions_left + 1] = i
    left = left or {}
    left[at] = questions_left
  elseif not held or sub(held, 1, 33) ~= head then
    answer = 'g'
  else
    answer = 'f'
    if sub(held, 69, 84) > highest then
      highest = sub(held, 69, 84)
    end
    free = free + 1
    freed[free] = ARGV[at]
    if history_mode == 'a' or history_mode == 'p' and ending and ending ~= 'cancelled' then
      ended[remembered + 1] = now_text .. ' ' .. (ending or 'released') .. '\n' .. ARGV[at]
      remembered = remembered + 2
      ended[remembered] = held
    end
    if events then
      events[#events + 1] = string.match(ending or 'released', '^%S+') .. ' ' .. now_text .. '\n' .. ARGV[at] .. '\n'
        .. held
    end
  end
  ARGV[last_name + i] = answer or ARGV[last_name + i]
end

-- The field of the highest fence, then names, each followed by its new value. `length` is how many are in use.
local written, length = (left or questions > releases) and { '\tfence', '', '', '' }, 2
if questions > releases then
  local i, group = releases, last_name + questions + 1
  while ARGV[group] do
    local tail, patience = ARGV[group], ARGV[group + 1]
    local fence, middle
    for request = 1, #patience do
      i = i + 1
      local at = numbers and numbers[i] or 4 + i
      local questions_left = left and left[at]
      if questions_left or values[at] then
        questions_left = questions_left or {}
        questions_left[#questions_left + 1] = i
        left, tails, patiences = left or {}, tails or {}, patiences or {}
        left[at], tails[i], patiences[i] = questions_left, tail, byte(patience, request)
      else
        if not fence then
          fence = next_fence(highest, sub(tail, 15, 30))
          middle = ' ' .. format('%016d', now_text + sub(tail, 1, 13)) .. ' ' .. now_text .. ' ' .. fence .. ' ' .. now_text .. ' '
            .. now_text .. ' '
        end
        local record = ARGV[last_name + i] .. middle .. tail
        written[length + 1] = ARGV[at]
        length = length + 2
        written[length] = record
        ARGV[last_name + i] = fence
        granted = true
        if events then
          events[#events + 1] = 'acquired ' .. now_text .. '\n' .. ARGV[at] .. '\n' .. record
        end
      end
    end
    group = group + 2
  end
end

-- `texts`: the texts of the answer, by the number of the question. `messages`: channels, each followed by what is
-- pushed to it. `changes`: keys of entries, each followed by the fields to delete there and the fields to write.
local texts, messages, changes
if left then
  texts, messages, changes, ended, freed = {}, {}, {}, ended or {}, freed or {}
  local present, prefix = {}, sub(KEYS[1], 1, -7)
  -- The bytes of `t` and `q`.
  local TRY, QUEUE = 116, 113
  -- Remembers the last one: most entries of a name have as many units.
  local units_text, units_number
  local function number_of_units(text)
    if text ~= units_text then
      units_text, units_number = text, text + 0
    end
    return units_number
  end
  -- Answers these questions about a name. Returns false if the full script has to decide one of them; the caller
  -- then restores `highest`, `ended`, `messages`, `events` and `texts`.
  local function serve(at, asked)
    local name, value = ARGV[at], values[at]
    -- The state of the name, as in the value of a queue; `holder` is the record of the holder, if there is exactly one.
    local used, waiting, first, last, not_before, fence, shape, holder = 0, 0, 1, 0, '9999999999999999', '', '', nil
    if value and byte(value) == 49 then
      used, not_before = 0 + sub(value, 163, 172), sub(value, 35, 50)
      fence, shape, holder = sub(value, 69, 84), sub(value, 151, 161), value
    elseif value and sub(value, 1, 3) == 'q2 ' then
      used, waiting, first, last = 0 + sub(value, 4, 13), 0 + sub(value, 15, 24), 0 + sub(value, 26, 41), 0 + sub(value, 43, 58)
      not_before, fence, shape = sub(value, 60, 75), sub(value, 77, 92), sub(value, 94, 104)
      holder = #value > 105 and sub(value, 106) or nil
    elseif value then
      return false
    end
    if not_before <= now_text then
      return false
    end
    local key, questions_asked, capacity = prefix .. 'entries:' .. name, #asked, tonumber(sub(shape, 1, 10))
    -- `known`: what the entries say of those who ask. `next_record`: the record of the first who waits.
    local known, next_record = {}, nil
    local has_entries = waiting > 0 or used > 0 and not holder
    if has_entries then
      local fields = { first }
      for i = 1, questions_asked do
        fields[i + 1] = sub(ARGV[last_name + asked[i]], 2, 33)
      end
      local found = redis.pcall('HMGET', key, unpack(fields))
      next_record = found[1]
      -- Entries that were evicted, or have moved to another server already, are left to the full script.
      if found.err or waiting > 0 and not next_record or waiting == 0 and call('EXISTS', key) == 0 then
        return false
      end
      for i = 2, questions_asked + 1 do
        known[fields[i]] = found[i]
      end
    end

    local removed, added, deleted, put, is_granted = {}, {}, 0, 0, false
    local function hold(id, record)
      if used == 0 then
        holder = record
      else
        if holder then
          local other = sub(holder, 2, 33)
          added[put + 1], added[put + 2], known[other], holder = other, holder, holder, nil
          put = put + 2
        end
        added[put + 1], added[put + 2], known[id] = id, record, record
        put = put + 2
      end
      used = used + number_of_units(sub(record, 163, 172))
      if events then
        events[#events + 1] = 'acquired ' .. now_text .. '\n' .. name .. '\n' .. record
      end
    end

    local question, released = 1, nil
    while question <= questions_asked and asked[question] <= releases do
      local place, ending = last_name + asked[question], 'released'
      local id = sub(ARGV[place], 2, 33)
      if #ARGV[place] > 33 then
        ending = sub(ARGV[place], 34)
      end
      local record = holder and sub(holder, 2, 33) == id and holder or known[id]
      ARGV[place] = record and 'f' or 'g'
      -- It is a ticket: the full script takes waiters out of the queue.
      if record and #record <= 16 then
        return false
      elseif record then
        used = used - number_of_units(sub(record, 163, 172))
        if record == holder then
          holder = nil
        else
          deleted, known[id] = deleted + 1, nil
          removed[deleted] = id
        end
        if sub(record, 69, 84) > highest then
          highest = sub(record, 69, 84)
        end
        if history_mode == 'a' or history_mode == 'p' and ending ~= 'released' and ending ~= 'cancelled' then
          released = released or now_text .. ' released\n' .. name
          ended[remembered + 1] = ending == 'released' and released or now_text .. ' ' .. ending .. '\n' .. name
          remembered = remembered + 2
          ended[remembered] = record
        end
        if events then
          events[#events + 1] = string.match(ending, '^%S+') .. ' ' .. now_text .. '\n' .. name .. '\n' .. record
        end
      end
      question = question + 1
    end

    -- Grants from the front while units fit. `lines` collects what one channel gets, if that is more than one line; when the
    -- channel changes, they are joined into its message.
    local batch, at_batch, size, lines = nil, 1, 24, nil
    while waiting > 0 and used < capacity do
      local record = next_record
      if batch then
        record, at_batch = batch[at_batch], at_batch + 1
      end
      local instance = sub(record or '', 176, 191)
      if present[instance] == nil then
        local push = sub(ARGV[2], 1, 1)
        present[instance] = push == 'B'
          or tonumber(call('PUBSUB', push == 'S' and 'SHARDNUMSUB' or 'NUMSUB', prefix .. 'to:' .. instance)[2]) > 0
      end
      -- The full script skips waiters that no push reaches, and limits how many one call grants.
      if not present[instance] or deleted > 1000 then
        return false
      end
      if used + number_of_units(sub(record, 163, 172)) > capacity then
        break
      end
      local id, to, pushed = sub(record, 2, 33), prefix .. 'to:' .. instance, #messages
      fence = next_fence(fence > highest and fence or highest, sub(record, 134, 149))
      local message = 'granted ' .. id .. ' ' .. fence .. ' ' .. name
      if messages[pushed - 1] == to then
        lines = lines or { messages[pushed] }
        lines[#lines + 1] = message
      else
        messages[pushed], lines = lines and table.concat(lines, '\n') or messages[pushed], nil
        messages[pushed + 1], messages[pushed + 2] = to, message
      end
      deleted, waiting = deleted + 1, waiting - 1
      removed[deleted], first = first, first + 1
      -- A lone holder is stored in the value of the name; `hold` overwrites the ticket of any other.
      if used == 0 then
        deleted = deleted + 1
        removed[deleted] = id
      end
      hold(id, sub(record, 1, 68) .. fence .. sub(record, 85, 102) .. now_text .. sub(record, 119))
      if waiting > 0 and used < capacity and not (batch and batch[at_batch]) then
        local tickets = {}
        for i = 1, math.min(waiting, size) do
          tickets[i] = first + i - 1
        end
        batch, at_batch, size = call('HMGET', key, unpack(tickets)), 1, math.min(4 * size, 100)
      end
    end
    if lines then
      messages[#messages] = table.concat(lines, '\n')
    end

    local tail, expiry, tail_shape, units, floor
    for question = question, questions_asked do
      local i = asked[question]
      local head, patience = ARGV[last_name + i], patiences[i]
      local id = sub(head, 2)
      if tail ~= tails[i] then
        tail = tails[i]
        expiry, floor = format('%016d', now_text + sub(tail, 1, 13)), sub(tail, 15, 30)
        tail_shape, units = sub(tail, 32, 42), number_of_units(sub(tail, 44, 53))
      end
      if used == 0 then
        shape, capacity, not_before = tail_shape, tonumber(sub(tail, 32, 41)), '9999999999999999'
      end
      local fits = used < capacity and used + units <= capacity
      if known[id] or holder and sub(holder, 2, 33) == id or shape ~= tail_shape then
        return false
      elseif fits and waiting == 0 then
        fence, is_granted = next_fence(fence > highest and fence or highest, floor), true
        hold(id, head .. ' ' .. expiry .. ' ' .. now_text .. ' ' .. fence .. ' ' .. now_text .. ' ' .. now_text .. ' ' .. tail)
        ARGV[last_name + i] = fence
        not_before = expiry < not_before and expiry or not_before
      elseif patience == TRY and not fits and holder then
        ARGV[last_name + i], texts[i] = 'busy            ', waiting .. ' ' .. holder
      elseif patience == QUEUE then
        local record = head .. ' ' .. expiry .. ' ' .. now_text .. ' 0000000000000000 ' .. now_text .. ' 0000000000000000 ' .. tail
        ARGV[last_name + i], is_granted = 'queued          ', true
        texts[i] = format('%d %s %d', waiting, fence, not_before - now_text)
        not_before = expiry < not_before and expiry or not_before
        last = last + 1
        first = waiting == 0 and last or first
        local ticket = format('%d', last)
        added[put + 1], added[put + 2], added[put + 3], added[put + 4], known[id] = ticket, record, id, ticket, record
        put, waiting = put + 4, waiting + 1
        if events then
          events[#events + 1] = 'waiting ' .. now_text .. '\n' .. name .. '\n' .. record
        end
      else
        return false
      end
    end

    -- While a slot moves to another server EXISTS fails, and its error is not 0.
    if put > 0 and not has_entries and redis.pcall('EXISTS', key) ~= 0 then
      return false
    end
    if deleted + put > 0 then
      local change = #changes
      changes[change + 1], changes[change + 2], changes[change + 3] = key, removed, added
    end
    granted = granted or is_granted
    if used == 0 and value then
      free = free + 1
      freed[free] = name
      highest = fence > highest and fence or highest
    elseif used > 0 then
      local new = waiting == 0 and holder
        or format('q2 %010d %010d %016d %016d %s %s %s\n', used, waiting, first, last, not_before, fence, shape) .. (holder or '')
      -- A busy try and the release of a lease that is gone write nothing, so that both succeed when memory is full.
      if new ~= value then
        written[length + 1], written[length + 2] = name, new
        length = length + 2
      end
    end
    return true
  end

  for at, asked in pairs(left) do
    local highest_before, remembered_before, events_before, messages_before =
      highest, remembered, events and #events or 0, #messages
    local last_message = messages[messages_before]
    local done, is_served = pcall(serve, at, asked)
    if not (done and is_served) then
      highest, remembered, messages[messages_before] = highest_before, remembered_before, last_message
      for i = #messages, messages_before + 1, -1 do
        messages[i] = nil
      end
      for i = events and #events or 0, events_before + 1, -1 do
        events[i] = nil
      end
      for _, i in ipairs(asked) do
        ARGV[last_name + i], texts[i] = i > releases and 'slow            ' or 's', nil
      end
    end
  end
end

if granted then
  -- Redis checks its memory before the first write of a script only. On a full server the full script refuses the
  -- requests and lets the releases through.
  written[2] = highest
  local done = redis.pcall('HSET', KEYS[1], unpack(written, highest == '' and 3 or 1, length))
  if type(done) == 'table' and done.err then
    if not string.find(done.err, 'OOM') then
      return redis.error_reply(done.err)
    end
    return { now_text .. '-' .. string.rep('s', releases) .. string.rep('slow            ', questions - releases) }
  end
end
-- HDEL first, so that releases succeed when memory is full.
if free > 0 then
  call('HDEL', KEYS[1], unpack(freed, 1, free))
end
for i = 1, left and #changes or 0, 3 do
  local key, removed, added = changes[i], changes[i + 1], changes[i + 2]
  if #removed > 0 then
    call('HDEL', key, unpack(removed))
  end
  if #added > 0 then
    call('HSET', key, unpack(added))
  end
end
if not granted and length > 2 then
  written[2] = highest
  call('HSET', KEYS[1], unpack(written, highest == '' and 3 or 1, length))
elseif not granted and highest ~= (values[2] or '') then
  call('HSET', KEYS[1], '\tfence', highest)
end
-- Sixteen leases in one entry of the stream. Trimming costs time, so that only one call in ten does it: if the last
-- digit of the time is 0.
for first = 1, remembered, 32 do
  local last = math.min(remembered, first + 31)
  if byte(now_text, -1) == 48 then
    call('XADD', KEYS[2], 'MAXLEN', '~', sub(ARGV[2], 3, 8) + 0, '*', unpack(ended, first, last))
  else
    call('XADD', KEYS[2], '*', unpack(ended, first, last))
  end
end
local publish = sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH'
for i = 1, left and #messages or 0, 2 do
  call(publish, messages[i], messages[i + 1])
end
if events and #events > 0 then
  call(publish, ARGV[3], table.concat(events, '\30'))
end
local columns = now_text .. sweep .. table.concat(ARGV, '', last_name + 1, last_name + questions)
if not left then
  return columns
end
local answer = { columns }
for i = releases + 1, questions do
  answer[#answer + 1] = texts[i]
end
return answer
