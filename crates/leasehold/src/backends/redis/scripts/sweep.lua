-- Ends lone holders that expired and that nobody asked about, among a bounded number of names.
--
-- KEYS    1 leases  2 history
-- ARGV    3 channel of events
-- answer  names with several holders or a queue of which an entry may have expired, for the client to settle
--@ prelude.lua
--@ history.lua

local stored = call('HMGET', KEYS[1], '\tmemory', '\twatched', '\tsweep', '\tfence')
if stored[1] ~= ARGV[1] then
  return 'other_epoch'
end
if stored[3] and sub(stored[3], 1, 16) > now_text then
  return {}
end
local watched = stored[2] and stored[2] > now_text
local scanned = call('HSCAN', KEYS[1], sub(stored[3] or '', 18), 'COUNT', 200)
local queues, expired, ended, events = {}, {}, {}, {}
local highest = stored[4] or ''
for i = 1, #scanned[2], 2 do
  local name, held = scanned[2][i], scanned[2][i + 1]
  local expiry = sub(held, 35, 50)
  local form = sub(held, 1, 1)
  if sub(name, 1, 1) ~= '\t' and form == 'q' and sub(held, 60, 75) <= now_text then
    queues[#queues + 1] = name
  elseif sub(name, 1, 1) ~= '\t' and form == '1' and expiry <= now_text then
    expired[#expired + 1] = name
    if sub(held, 69, 84) > highest then
      highest = sub(held, 69, 84)
    end
    if is_remembered('expired') then
      ended[#ended + 1] = expiry .. ' expired\n' .. name
      ended[#ended + 1] = held
    end
    if watched then
      events[#events + 1] = 'expired ' .. expiry .. '\n' .. name .. '\n' .. held
    end
  end
end

-- The time until the next sweep, in µs: short if many leases had expired.
local pause = #expired > 20 and 100000 or 5000000
call('HDEL', KEYS[1], '\tnothing', unpack(expired))
call('HSET', KEYS[1], '\tsweep', format('%016.0f ', now_text + pause) .. scanned[1])
if highest ~= (stored[4] or '') then
  call('HSET', KEYS[1], '\tfence', highest)
end
append_history(ended)
if #events > 0 then
  publish(ARGV[3], table.concat(events, '\30'))
end
return queues
