-- Ends leases of lone holders.
--
-- KEYS    1 leases  2 history
-- ARGV    3 channel of events, then three for each release: name, lease id, ending (and behind it the problem as JSON)
-- answer  for each release: 'freed' / 'gone' / 'slow', for the full script to decide
--@ head.lua
--@ ended.lua

local fields = { '\tmemory', '\twatched' }
for i = 4, #ARGV, 3 do
  fields[#fields + 1] = ARGV[i]
end
local stored = call('HMGET', KEYS[1], unpack(fields))
if stored[1] ~= ARGV[1] then
  return 'begin'
end
local watched = stored[2] and stored[2] > nows
local answers, freed, ended, events, taken = {}, {}, {}, {}, {}

for at = 3, #fields do
  local name, held = fields[at], stored[at]
  local answer = 'slow'
  if not held or taken[name] then
    answer = 'gone'
  elseif sub(held, 1, 1) == '1' and sub(held, 35, 50) > nows then
    answer = 'gone'
    if sub(held, 2, 33) == ARGV[3 * at - 4] then
      local how = ARGV[3 * at - 3]
      freed[#freed + 1] = name
      if is_remembered(how) then
        ended[#ended + 1] = name
        ended[#ended + 1] = nows .. ' ' .. how .. '\n' .. held
      end
      if watched then
        events[#events + 1] = string.match(how, '^%S+') .. ' ' .. nows .. '\n' .. name .. '\n' .. held
      end
      taken[name], answer = true, 'freed'
    end
  end
  answers[#answers + 1] = answer
end

if #freed > 0 then
  call('HDEL', KEYS[1], unpack(freed))
  remember(ended)
end
if #events > 0 then
  call(publish, ARGV[3], table.concat(events, '\30'))
end
return answers
