-- Ends leases of lone holders.
--
-- KEYS    1 leases  2 history
-- ARGV    3 channel of events
--         then three for each release: name, no name twice; head of its record (form and id); ending, and behind it the
--         problem as JSON
-- answer  for each release: 'freed' / 'gone' / 'slow', for the full script to decide
--@ head.lua

local fields = { '\tmemory', '\twatched' }
for i = 4, #ARGV, 3 do
  fields[#fields + 1] = ARGV[i]
end
local stored = call('HMGET', KEYS[1], unpack(fields))
if stored[1] ~= ARGV[1] then
  return 'begin'
end
local answers, freed, ended, events = {}, {}, {}, nil
local which = sub(ARGV[2], 2, 2)
if stored[2] and stored[2] > nows then
  events = {}
end

for at = 3, #fields do
  local held = stored[at]
  local answer = 'slow'
  if not held then
    answer = 'gone'
  elseif sub(held, 1, 33) == ARGV[3 * at - 4] and sub(held, 35, 50) > nows then
    local name, how = fields[at], ARGV[3 * at - 3]
    answer = 'freed'
    freed[#freed + 1] = name
    if which == 'a' or which == 'p' and how ~= 'released' and how ~= 'cancelled' then
      ended[#ended + 1] = name
      ended[#ended + 1] = nows .. ' ' .. how .. '\n' .. held
    end
    if events then
      events[#events + 1] = string.match(how, '^%S+') .. ' ' .. nows .. '\n' .. name .. '\n' .. held
    end
  elseif sub(held, 1, 1) == '1' and sub(held, 35, 50) > nows then
    answer = 'gone'
  end
  answers[at - 2] = answer
end

if #freed > 0 then
  call('HDEL', KEYS[1], unpack(freed))
end
for at = 1, #ended, 16 do
  local last = math.min(#ended, at + 15)
  call('XADD', KEYS[2], 'MAXLEN', '~', sub(ARGV[2], 3, 8) + 0, '*', unpack(ended, at, last))
end
if events and #events > 0 then
  call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[3], table.concat(events, '\30'))
end
return answers
