-- Decides what needs no queue: releases, requests for names that nobody has, requests to share a name while nobody
-- waits for it, and tries where one holder has all of it.
--
-- KEYS    1 leases  2 history
-- ARGV    3 channel of events  4 how many releases, then two for each: name; head of its record (form and id), and
--         behind it the ending and the problem as JSON, unless it was just released
--         then requests, those with the same tail of their records together: the tail; the patience of each, a letter:
--         t try, q queue; and two for each: name, head of its record
-- answer  {columns, then the record of the holder for each request that is busy}; columns: now(1-16), s if a sweep is
--         due(17), a letter for each release: f freed, g gone, s slow, for the full script to decide; and 16 for each
--         request: its fence, or slow, or busy
--@ head.lua

local fields, heads, count = { '\tmemory', '\tfence', '\twatched', '\tsweep' }, {}, 4
local requests = 5 + 2 * ARGV[4]
for i = 5, requests - 1, 2 do
  count = count + 1
  fields[count], heads[count] = ARGV[i], ARGV[i + 1]
end
local releases, at = count, requests
while ARGV[at] do
  local behind = at + 2 + 2 * #ARGV[at + 1]
  for i = at + 2, behind - 1, 2 do
    count = count + 1
    fields[count], heads[count] = ARGV[i], ARGV[i + 1]
  end
  at = behind
end
local stored = call('HMGET', KEYS[1], unpack(fields))
if stored[1] ~= ARGV[1] then
  return 'begin'
end
local events = stored[3] and stored[3] > nows and {}
local values, shared, ended, freed = {}, {}, {}, {}
local answers, busy = { nows, (not stored[4] or sub(stored[4], 1, 16) <= nows) and 's' or '-' }, {}

for i = 5, count do
  local name, value = fields[i], stored[i]
  values[name] = value
  if value and #value == 59 and sub(value, 1, 2) == 's1' and not shared[name] then
    local ids, entries = {}, {}
    for other = i, count do
      if fields[other] == name then
        ids[#ids + 1] = sub(heads[other], 2, 33)
      end
    end
    local key = sub(KEYS[1], 1, -7) .. 'entries:' .. name
    for other, record in ipairs(call('HMGET', key, unpack(ids))) do
      entries[ids[other]] = record
    end
    shared[name] = {
      key = key, entries = entries, added = {}, removed = {},
      used = tonumber(sub(value, 4, 13)), first = sub(value, 15, 30), fence = sub(value, 32, 47), shape = sub(value, 49, 59),
    }
  end
end

for i = 5, releases do
  local name, head, how, answer = fields[i], heads[i], 'released', 's'
  if #head > 33 then
    head, how = sub(head, 1, 33), sub(head, 34)
  end
  local s = shared[name]
  local held = values[name]
  if s then
    held = s.entries[sub(head, 2)]
  end
  if not held then
    answer = 'g'
  elseif sub(held, 1, 33) == head and sub(held, 35, 50) > nows then
    answer = 'f'
    if s then
      s.used = s.used - sub(held, 163, 172)
      s.entries[sub(head, 2)] = nil
      s.removed[#s.removed + 1] = sub(head, 2)
    else
      values[name] = nil
      freed[#freed + 1] = name
    end
    local which = sub(ARGV[2], 2, 2)
    if which == 'a' or which == 'p' and how ~= 'released' and how ~= 'cancelled' then
      ended[#ended + 1] = name
      ended[#ended + 1] = nows .. ' ' .. how .. '\n' .. held
    end
    if events then
      events[#events + 1] = string.match(how, '^%S+') .. ' ' .. nows .. '\n' .. name .. '\n' .. held
    end
  elseif sub(held, 1, 1) == '1' and sub(held, 35, 50) > nows then
    answer = 'g'
  end
  answers[i - 2] = answer
end

local last, stem, digit = stored[2] or '', nil, 0
local written, length = { '\tfence', '' }, 2
local i, at = releases, requests
while ARGV[at] do
  local tail, patience = ARGV[at], ARGV[at + 1]
  local stop, floor = format('%016.0f', nows + sub(tail, 1, 13)), sub(tail, 15, 30)
  local before, between, behind = ' ' .. stop .. ' ' .. nows .. ' ', ' ' .. nows .. ' ' .. nows .. ' ', at + 2 + 2 * #patience
  for request = 1, #patience do
    i = i + 1
    local name, head, answer = fields[i], heads[i], 'slow            '
    local held, s = values[name], shared[name]
    if held and not s and sub(held, 1, 1) == '1' and sub(held, 35, 50) > nows and sub(held, 151, 161) == sub(tail, 32, 42)
      and sub(held, 1, 33) ~= head then
      local used, units, capacity = tonumber(sub(held, 163, 172)), sub(tail, 44, 53), tonumber(sub(held, 151, 160))
      if used + units <= capacity then
        local id = sub(held, 2, 33)
        s = {
          key = sub(KEYS[1], 1, -7) .. 'entries:' .. name, entries = { [id] = held }, added = { id, held }, removed = {},
          used = used, first = sub(held, 35, 50), fence = sub(held, 69, 84), shape = sub(held, 151, 161),
        }
        shared[name] = s
      elseif used == capacity and sub(patience, request, request) == 't' then
        answer = 'busy            '
        busy[#busy + 1] = held
      end
    end
    local fits = s and s.first > nows and s.shape == sub(tail, 32, 42) and not s.entries[sub(head, 2)]
      and s.used + sub(tail, 44, 53) <= tonumber(sub(s.shape, 1, 10))
    if fits or not held then
      if digit == 9 then
        stem = nil
      end
      if stem then
        digit = digit + 1
      else
        local first = nows
        if last >= nows then
          first = format('%016.0f', last + 1)
        end
        stem, digit = sub(first, 1, 15), tonumber(sub(first, 16))
      end
      answer = stem .. sub('0123456789', digit + 1, digit + 1)
      if floor > answer then
        answer = format('%016.0f', math.max(answer, math.min(floor, nows + 10000000)))
        stem = nil
      end
      last = answer
      local record = head .. before .. answer .. between .. tail
      if fits then
        local added, id = s.added, sub(head, 2)
        added[#added + 1], added[#added + 2] = id, record
        s.entries[id], s.used, s.fence = record, s.used + sub(tail, 44, 53), answer
        if stop < s.first then
          s.first = stop
        end
      else
        values[name] = record
        written[length + 1], written[length + 2] = name, record
        length = length + 2
      end
      if events then
        events[#events + 1] = 'acquired ' .. nows .. '\n' .. name .. '\n' .. record
      end
    end
    answers[i - 2] = answer
  end
  at = behind
end

local granted = last ~= (stored[2] or '')
for name, s in pairs(shared) do
  if s.used == 0 then
    freed[#freed + 1] = name
    values[name] = nil
  elseif #s.added + #s.removed > 0 then
    written[length + 1], written[length + 2] = name, format('s1 %010.0f %s %s %s', s.used, s.first, s.fence, s.shape)
    length = length + 2
  end
end
if granted then
  -- Redis checks its memory before the first write of a script only. On a full server the full script refuses the
  -- requests and lets the releases through.
  written[2] = last
  local done = redis.pcall('HSET', KEYS[1], unpack(written))
  if type(done) == 'table' and done.err then
    if not string.find(done.err, 'OOM') then
      return redis.error_reply(done.err)
    end
    return { nows .. '-' .. string.rep('s', releases - 4) .. string.rep('slow            ', count - releases) }
  end
end
local gone = {}
for _, name in ipairs(freed) do
  if not values[name] then
    gone[#gone + 1] = name
  end
end
if #gone > 0 then
  call('HDEL', KEYS[1], unpack(gone))
end
for _, s in pairs(shared) do
  if #s.removed > 0 then
    call('HDEL', s.key, unpack(s.removed))
  end
  if #s.added > 0 then
    call('HSET', s.key, unpack(s.added))
  end
end
if not granted and length > 2 then
  call('HSET', KEYS[1], unpack(written, 3))
end
-- Sixteen leases in one entry of the stream, which is trimmed by entries.
for first = 1, #ended, 32 do
  call('XADD', KEYS[2], 'MAXLEN', '~', sub(ARGV[2], 3, 8) + 0, '*', unpack(ended, first, math.min(#ended, first + 31)))
end
if events and #events > 0 then
  call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[3], table.concat(events, '\30'))
end
return { table.concat(answers), unpack(busy) }
