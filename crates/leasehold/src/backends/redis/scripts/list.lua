-- Reads the entries of resources, holders first, then the queue. Ports State::records.
--
-- ARGV    behind the names of the resources, one for each: how many entries to leave out, or -1 to settle only
-- answer  {now, for each resource an array of at most 1000 records, or {'newer'} or {'error', text}}
--@ head.lua
--@ history.lua
--@ model.lua

local function list(r, from)
  if r.lone and sub(r.lone, 35, 50) > now_text then
    return { r.lone }
  end
  settle(r)
  if from < 0 or is_empty(r) then
    return {}
  end
  flush(r)
  local ids = call('ZRANGE', r.order, from, from + 999)
  return #ids == 0 and {} or call('HMGET', r.entries, unpack(ids))
end

call('HDEL', KEYS[1], '\tnothing')
local answers = { now_text }
for at = 1, resources do
  answers[at + 1] = try(list, resource(at), tonumber(ARGV[4 + resources + at]))
end
return finish(answers)
