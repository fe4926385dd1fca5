-- Decides requests and releases that the fast script does not, in their order. Ports State::acquire and State::release.
--
-- ARGV    behind the names of the resources, six for each: number of the resource, 'a' acquire or 'r' release, then
--         acquire: head of the record, tail of the record, 't' try or 'q' queue, most waiters ahead or ''
--         release: lease id, ending, problem as JSON with a blank before it or '', nothing
-- answer  for each: {'holding', fence, acquired}  {'waiting', ahead, newest fence, µs until the first end, or ''}
--         {'busy', now, waiting, record of each holder...}  {'wrong', shape in force}
--         {'release', 'freed' or 'left' or 'gone'}; 'fast' at the end of one whose name fast scripts can handle now
--         {'newer'} for what a newer version wrote  {'error', text}; at the end 'unsettled' if work is left
--@ head.lua
--@ history.lua
--@ model.lua

local function busy(r)
  return { 'busy', now_text, format('%.0f', r.waiting), unpack(holders(r, 100)) }
end

local function enqueue(r, id, record, rank)
  put(r, id, record)
  r.ranks[id] = rank
  set_expiry(r, id, sub(record, 35, 50))
end

local function acquire(r, head, tail, patience, max_waiters)
  local id = sub(head, 2)
  local record = settle(r, id)
  if record then
    record = prolong(r, id, record, sub(tail, 1, 13))
    put(r, id, record)
    return standing(r, id, record)
  end
  local shape, units = sub(tail, 32, 42), tonumber(sub(tail, 44, 53))
  local capacity = tonumber(sub(shape, 1, 10))
  record = head .. ' ' .. end_of(sub(tail, 1, 13)) .. ' ' .. now_text .. ' ' .. NO_FENCE .. ' ' .. now_text .. ' '
    .. NO_FENCE .. ' ' .. tail
  if is_empty(r) then
    call('DEL', r.entries, r.order, r.ends)
    raise_highest_fence(r.fence)
    reset(r)
    r.lone = granted(r, record)
    r.used = 0
    return { 'holding', r.fence, now_text }
  end
  if r.shape ~= shape then
    return { 'wrong', r.shape }
  end
  local fits = r.used + units <= capacity
  if not fits and (patience == 't' or max_waiters ~= '' and r.waiting > tonumber(max_waiters)) then
    return busy(r)
  end
  -- When it joins, all others are ahead of it.
  local ahead, first = r.waiting, first_of_all(r)
  r.ticket = r.ticket + 1
  if fits and ahead == 0 then
    record = granted(r, record)
    enqueue(r, id, record, r.ticket - HOLDER_OFFSET)
    return standing(r, id, record)
  end
  r.waiting, r.queue_changed = ahead + 1, true
  enqueue(r, id, record, r.ticket)
  if fits then
    grant(r, id)
    record = entry(r, id)
    if sub(record, 69, 84) ~= NO_FENCE then
      return standing(r, id, record)
    end
    ahead = r.waiting - 1
    if patience == 't' or max_waiters ~= '' and ahead > tonumber(max_waiters) then
      r.waiting = ahead
      delete_entry(r, id, record)
      return busy(r)
    end
  end
  add_event('waiting', now_text, r, record)
  return { 'waiting', format('%.0f', ahead), r.fence, format('%.0f', max(0, first - now)) }
end

local function release(r, id, ending, problem)
  local record = settle(r, id)
  if not record then
    return { 'release', 'gone' }
  end
  local held = sub(record, 69, 84) ~= NO_FENCE
  if ending == 'released' and not held then
    ending = 'cancelled'
  end
  delete_entry(r, id, record)
  remove(r, record, ending, now_text, problem)
  grant(r)
  return { 'release', held and 'freed' or 'left' }
end

-- Redis checks its memory before the first write of a script only, and never before HDEL. The first write here tells
-- whether it is full: then requests are refused, and releases go through.
local full
for i = 5 + resources, #ARGV, 6 do
  if ARGV[i + 1] == 'a' then
    local written = redis.pcall('HSET', KEYS[1], '\tfence', highest)
    full = type(written) == 'table' and written.err
    break
  end
end
if full and not string.find(full, 'OOM') then
  return redis.error_reply(full)
end
call('HDEL', KEYS[1], '\tnothing')

local ids = {}
for i = 5 + resources, #ARGV, 6 do
  local some = ids[ARGV[i]] or {}
  some[#some + 1] = ARGV[i + 1] == 'a' and sub(ARGV[i + 2], 2) or ARGV[i + 2]
  ids[ARGV[i]] = some
end
for at, some in pairs(ids) do
  local r = resource(tonumber(at))
  if r then
    try(read, r, some)
  end
end

local answers = {}
for i = 5 + resources, #ARGV, 6 do
  local r = resource(tonumber(ARGV[i]))
  local answer
  if ARGV[i + 1] == 'a' and full then
    answer = { 'error', full }
  elseif ARGV[i + 1] == 'a' then
    answer = try(acquire, r, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
  else
    answer = try(release, r, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  end
  if r and is_fast(r) then
    answer[#answer + 1] = 'fast'
  end
  answers[#answers + 1] = answer
end
return finish(answers)
