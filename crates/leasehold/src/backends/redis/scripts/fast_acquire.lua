-- Grants requests for names that nobody has, and refuses tries where one holder has all of it.
--
-- KEYS    1 leases
-- ARGV    3 channel of events  4 patience of each request, a letter: t try, q queue
--         then three for each request: name, no name twice; head of its record (form and id); tail of its record (ttl and
--         the rest)
-- answer  {now, for each request: its fence / 'slow', for the full script to decide / the record of the holder;
--         'sweep' at the end if that is due}
--@ head.lua

local fields = { '\tmemory', '\tfence', '\twatched', '\tsweep' }
for i = 5, #ARGV, 3 do
  fields[#fields + 1] = ARGV[i]
end
local stored = call('HMGET', KEYS[1], unpack(fields))
if stored[1] ~= ARGV[1] then
  return 'begin'
end
local last = stored[2] or ''
local answers, written, length = { nows }, { '\tfence', '' }, 2
local renewed, since = ' ' .. nows .. ' ', ' ' .. nows .. ' ' .. nows .. ' '
local asked, floor, stop

for at = 5, #fields do
  local held, head, tail = stored[at], ARGV[3 * at - 9], ARGV[3 * at - 8]
  local answer = 'slow'
  if not held then
    local ttl_and_floor = sub(tail, 1, 30)
    if ttl_and_floor ~= asked then
      asked, floor = ttl_and_floor, sub(tail, 15, 30)
      stop = format('%016.0f', nows + sub(tail, 1, 13))
    end
    answer = nows
    if last >= nows then
      answer = format('%016.0f', last + 1)
    end
    if floor > answer then
      answer = format('%016.0f', math.max(answer, math.min(floor, nows + 10000000)))
    end
    last = answer
    written[length + 1] = fields[at]
    written[length + 2] = head .. ' ' .. stop .. renewed .. answer .. since .. tail
    length = length + 2
  elseif sub(ARGV[4], at - 4, at - 4) == 't' and sub(held, 1, 1) == '1' and sub(held, 35, 50) > nows
    and sub(held, 1, 33) ~= head and sub(held, 151, 160) == sub(held, 163, 172)
    and sub(held, 151, 161) == sub(tail, 32, 42) then
    answer = held
  end
  answers[at - 3] = answer
end

if length > 2 then
  written[2] = last
  call('HSET', KEYS[1], unpack(written))
  if stored[3] and stored[3] > nows then
    local events = {}
    for i = 3, length, 2 do
      events[#events + 1] = 'acquired ' .. nows .. '\n' .. written[i] .. '\n' .. written[i + 1]
    end
    call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[3], table.concat(events, '\30'))
  end
end
if not stored[4] or sub(stored[4], 1, 16) <= nows then
  answers[#answers + 1] = 'sweep'
end
return answers
