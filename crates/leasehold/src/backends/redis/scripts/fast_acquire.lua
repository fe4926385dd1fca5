-- Grants requests for names that nobody has, and refuses tries where one holder has all of it.
--
-- KEYS    1 leases
-- ARGV    3 channel of events  4 patience of each request, a letter: t try, q queue
--         then three for each request: name, head of its record (form and id), tail of its record (ttl and the rest)
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
local watched = stored[3] and stored[3] > nows
local answers, written, events, taken, ends = { nows }, { '\tfence', '' }, {}, {}, {}
local renewed, since = ' ' .. nows .. ' ', ' ' .. nows .. ' ' .. nows .. ' '

for at = 5, #fields do
  local name, held = fields[at], stored[at]
  local head, tail = ARGV[3 * at - 9], ARGV[3 * at - 8]
  local answer = 'slow'
  if not held and not taken[name] then
    local ttl, floor = sub(tail, 1, 13), sub(tail, 15, 30)
    if not ends[ttl] then
      ends[ttl] = format('%016.0f', nows + ttl)
    end
    local fence = nows
    if last >= nows then
      fence = format('%016.0f', last + 1)
    end
    if floor > fence then
      local most = format('%016.0f', nows + 10000000)
      if floor > most then
        floor = most
      end
      if floor > fence then
        fence = floor
      end
    end
    local record = head .. ' ' .. ends[ttl] .. renewed .. fence .. since .. tail
    written[#written + 1] = name
    written[#written + 1] = record
    if watched then
      events[#events + 1] = 'acquired ' .. nows .. '\n' .. name .. '\n' .. record
    end
    taken[name], last, answer = true, fence, fence
  elseif held and sub(ARGV[4], at - 4, at - 4) == 't' and sub(held, 1, 1) == '1' and sub(held, 35, 50) > nows
    and sub(held, 1, 33) ~= head and sub(held, 151, 160) == sub(held, 163, 172)
    and sub(held, 151, 161) == sub(tail, 32, 42) then
    answer = held
  end
  answers[#answers + 1] = answer
end

if #written > 2 then
  written[2] = last
  call('HSET', KEYS[1], unpack(written))
end
if #events > 0 then
  call(publish, ARGV[3], table.concat(events, '\30'))
end
if not stored[4] or sub(stored[4], 1, 16) <= nows then
  answers[#answers + 1] = 'sweep'
end
return answers
