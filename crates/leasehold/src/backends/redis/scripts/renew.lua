-- Moves the ends of leases and tells how each stands. Ports State::renew of model.rs.
--
-- KEYS    1 fence  2 index  3 history  4 watched, then for each renewal: lease  entries  order  ends
-- ARGV    1 settings, then one for each renewal, in columns:
--         lease id(1-32) ttl(34-46) 'p' plain or 'c' with changes(48), then
--         floor or 0, units or 0, capacity, family, mode \n name \n metadata as JSON, or nothing to leave it
-- answer  one text for each renewal: 'holding' fence acquired / 'waiting' ahead last µs / 'gone'

local time = redis.call('TIME')
local nows = time[1] .. string.sub('00000' .. time[2], -6)
local settings = ARGV[1]
local answers = {}
local rest = {}

-- The plain case: one holder has all of it, and changes nothing else.
for i = 2, #ARGV do
  local at = 4 * i - 3
  local record = redis.call('GET', KEYS[at])
  local asked = ARGV[i]
  if record and string.sub(record, 1, 32) == string.sub(asked, 1, 32) and string.sub(record, 34, 49) > nows
    and string.sub(asked, 48, 48) == 'p' then
    local ttl = string.sub(asked, 34, 46)
    local later = string.format('%016.0f', nows + ttl)
    if later > string.sub(record, 34, 49) then
      record = string.sub(record, 1, 33) .. later .. ' ' .. nows .. string.sub(record, 67, 118) .. ttl .. string.sub(record, 132)
      redis.call('SET', KEYS[at], record, 'PX', string.format('%.0f', ttl / 1000 + 86400000))
    else
      redis.call('SET', KEYS[at], string.sub(record, 1, 50) .. nows .. string.sub(record, 67), 'KEEPTTL')
    end
    answers[i - 1] = 'holding ' .. string.sub(record, 68, 83) .. ' ' .. string.sub(record, 102, 117)
  elseif record and string.sub(record, 1, 32) ~= string.sub(asked, 1, 32) and string.sub(record, 34, 49) > nows then
    answers[i - 1] = 'gone'
  elseif not record and redis.call('EXISTS', KEYS[at + 1]) == 0 then
    answers[i - 1] = 'gone'
  else
    rest[#rest + 1] = i
  end
end
if #rest == 0 then
  return answers
end

--@ rule.lua

local function change(id, record, asked)
  local floor, units, shape, mode = match(asked, '^(%d+) (%d+) (%S+ %S+) (%S+)', 50)
  local metadata = match(asked, '^[^\n]*\n[^\n]*\n(.*)', 50)
  if metadata ~= '' then
    record = match(record, '^[^\n]*\n[^\n]*\n') .. metadata
  end
  local had, in_force = match(record, '^(%d+) (%d+ %a+)', 133)
  local held = sub(record, 68, 83) ~= NONE
  if shape == in_force and tonumber(units) <= tonumber(had) then
    record = sub(record, 1, 132) .. units .. ' ' .. shape .. ' ' .. mode .. match(record, '^%d+ %d+ %a+ %a+(.*)', 133)
    if held then
      call('HINCRBY', entries, 'used', tonumber(units) - tonumber(had))
    end
  end
  local raised = tonumber(floor)
  if held and raised > tonumber(call('HGET', entries, 'fence')) and raised <= now + LEAD then
    record = sub(record, 1, 67) .. digits(raised) .. sub(record, 84)
    call('HSET', entries, 'fence', digits(raised))
    call('SET', KEYS[1], digits(max(raised, tonumber(call('GET', KEYS[1]) or 0))))
  end
  call('HSET', entries, id, record)
end

for _, i in ipairs(rest) do
  local asked = ARGV[i]
  local id = sub(asked, 1, 32)
  take(4 * i - 3, match(asked, '^[^\n]*\n([^\n]*)', 50))
  settle(id)
  local record = call('HGET', entries, id)
  if record then
    record = prolong(id, record, sub(asked, 34, 46))
    if sub(asked, 48, 48) == 'c' then
      change(id, record, asked)
      settle(id)
    end
  end
  answers[i - 1] = table.concat(standing(id), ' ')
  put_down()
end
return answers
