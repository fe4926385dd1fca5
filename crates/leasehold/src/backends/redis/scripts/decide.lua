-- Decides requests and releases that the fast script does not, in their order. Ports State::acquire and State::release.
--
-- ARGV    after the names of the resources, six for each: number of the resource, 'a' acquire or 'r' release, then
--         acquire: head of the record, tail of the record, 't' try or 'q' queue, most waiters ahead or ''
--         release: lease id, ending, problem as JSON with a space before it or '', nothing
-- answer  for each: {'holding', fence, acquired}  {'waiting', ahead, newest fence, µs until the first end, or ''}
--         {'busy', now, waiting, record of each holder...}  {'wrong', shape in force}
--         {'release', 'freed' or 'left' or 'gone'}; 'fast' at the end of one whose name fast scripts can handle now
--         {'newer'} for what a newer version wrote  {'error', text}; at the end 'unsettled' if work is left
--@ prelude.lua
--@ history.lua
--@ model.lua

local function busy(r)
  return { 'busy', now_text, format('%.0f', r.waiting), unpack((holders(r, 100)), 1, 100) }
end

local function acquire(r, head, tail, patience, max_waiters)
  local id = sub(head, 2)
  local record, ticket = settle(r, id)
  if record then
    record = prolong(record, sub(tail, 1, 13))
    put(r, id, record, ticket)
    return standing(r, record, ticket)
  end
  local shape, units = sub(tail, 32, 42), tonumber(sub(tail, 44, 53))
  local capacity = tonumber(sub(shape, 1, 10))
  record = head .. ' ' .. end_of(sub(tail, 1, 13)) .. ' ' .. now_text .. ' ' .. NO_FENCE .. ' ' .. now_text .. ' '
    .. NO_FENCE .. ' ' .. tail
  if is_empty(r) then
    if not r.knows_all or r.has_flushed then
      call('DEL', r.entries)
    end
    raise_highest_fence(r.fence)
    reset(r)
    r.shape, r.not_before = shape, sub(record, 35, 50)
    return standing(r, hold(r, id, record))
  end
  if r.shape ~= shape then
    return { 'wrong', r.shape }
  end
  local fits = r.used + units <= capacity
  if not fits and (patience == 't' or max_waiters ~= '' and r.waiting > tonumber(max_waiters)) then
    return busy(r)
  end
  -- When it joins, all others are ahead of it.
  local ahead, first = r.waiting, r.not_before
  add_end(r, sub(record, 35, 50))
  if fits and ahead == 0 then
    return standing(r, hold(r, id, record))
  end
  r.last = r.last + 1
  r.first = ahead == 0 and r.last or r.first
  ticket = format('%.0f', r.last)
  set_field(r, ticket, record)
  set_field(r, id, ticket)
  r.waiting, r.positions = ahead + 1, nil
  if fits then
    grant(r, id)
    record, ticket = entry(r, id)
    if not ticket then
      return standing(r, record)
    end
    ahead = r.waiting - 1
    if patience == 't' or max_waiters ~= '' and ahead > tonumber(max_waiters) then
      set_field(r, id, false)
      leave_queue(r, ticket)
      r.last = r.last - 1
      return busy(r)
    end
  end
  add_event('waiting', now_text, r, record)
  return { 'waiting', format('%.0f', ahead), r.fence, format('%.0f', max(0, first - now)) }
end

local function release(r, id, ending, problem)
  local record, ticket = settle(r, id)
  if not record then
    return { 'release', 'gone' }
  end
  remove(r, id, record, ticket, ticket and ending == 'released' and 'cancelled' or ending, now_text, problem)
  grant(r)
  return { 'release', ticket and 'left' or 'freed' }
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
