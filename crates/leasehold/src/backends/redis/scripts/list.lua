-- Tells the entries of resources, holders first, then the queue. Ports State::records of model.rs.
--
-- KEYS    1 fence  2 index  3 history  4 watched, then for each resource: lease  entries  order  ends
-- ARGV    1 settings, then the name of each resource
-- answer  {now, then an array of records for each resource}

local time = redis.call('TIME')
local nows = time[1] .. string.sub('00000' .. time[2], -6)
local settings = ARGV[1]

--@ rule.lua

local answers = { nows }
for i = 2, #ARGV do
  local at = 4 * i - 3
  local record = call('GET', KEYS[at])
  if record and sub(record, 34, 49) > nows then
    answers[i] = { record }
  else
    take(at, ARGV[i])
    settle()
    local records = holders()
    for _, id in ipairs(call('ZRANGEBYSCORE', order, 0, '+inf')) do
      records[#records + 1] = call('HGET', entries, id)
    end
    put_down()
    answers[i] = records
  end
end
return answers
