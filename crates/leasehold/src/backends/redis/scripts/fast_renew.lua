-- Renews leases that hold: moves their ends.
--
-- KEYS    1 leases
-- ARGV    from 3 on two for each renewal: name, and in columns head of the record(1-33) ttl(35-47)
-- answer  for each renewal: fence, asked and acquired in columns / 'gone' / 'slow', for the full script to decide
--@ prelude.lua

local fields = { '\tmemory' }
for i = 3, #ARGV, 2 do
  fields[#fields + 1] = ARGV[i]
end
local stored = call('HMGET', KEYS[1], unpack(fields))
if stored[1] ~= ARGV[1] then
  return 'other_epoch'
end
local answers, written, ends = {}, {}, {}

for at = 2, #fields do
  local held, asked = stored[at], ARGV[2 * at]
  local answer, state, entries = 'slow', nil, nil
  if held and sub(held, 1, 3) == 'q2 ' and sub(held, 60, 75) > now_text then
    state, held = sub(held, 1, 105), sub(held, 106)
    if sub(held, 2, 33) ~= sub(asked, 2, 33) then
      entries = sub(KEYS[1], 1, -7) .. 'entries:' .. fields[at]
      held = redis.pcall('HGET', entries, sub(asked, 2, 33))
      -- The full script finds out what a missing entry means.
      held = type(held) == 'string' and held or ''
    end
  end
  if not held then
    answer = 'gone'
  elseif sub(held, 1, 33) == sub(asked, 1, 33) and sub(held, 35, 50) > now_text then
    local ttl = sub(asked, 35, 47)
    if not ends[ttl] then
      ends[ttl] = format('%016.0f', now_text + ttl)
    end
    answer = sub(held, 69, 118)
    if ends[ttl] > sub(held, 35, 50) then
      held = sub(held, 1, 34) .. ends[ttl] .. ' ' .. now_text .. sub(held, 68, 119) .. ttl .. sub(held, 133)
    else
      held = sub(held, 1, 51) .. now_text .. sub(held, 68)
    end
    if entries then
      -- So that a renewal succeeds when memory is full.
      call('HDEL', KEYS[1], '\tnothing')
      call('HSET', entries, sub(asked, 2, 33), held)
    else
      written[#written + 1] = fields[at]
      written[#written + 1] = (state or '') .. held
    end
  elseif not state and sub(held, 1, 1) == '1' and sub(held, 35, 50) > now_text then
    answer = 'gone'
  end
  answers[#answers + 1] = answer
end

if #written > 0 then
  call('HDEL', KEYS[1], '\tnothing')
  call('HSET', KEYS[1], unpack(written))
end
return answers
