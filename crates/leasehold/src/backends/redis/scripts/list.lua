-- Reads the entries of resources, holders first, then the queue. Ports State::records.
--
-- ARGV    after the names of the resources, one for each: how many entries to leave out, or -1 to settle only
-- answer  {now, for each resource an array of at most 1000 records, or {'newer'} or {'error', text}}
--@ prelude.lua
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
  local records = {}
  local function add(record)
    if from > 0 then
      from = from - 1
    elseif #records < 1000 then
      records[#records + 1] = record
    end
  end
  for _, record in ipairs((holders(r))) do
    add(record)
  end
  local ticket = r.first
  while #records < 1000 and ticket <= r.last do
    for _, name in ipairs(read_tickets(r, ticket, min(r.last, ticket + 999))) do
      local record = field(r, name)
      if record then
        add(record)
      end
    end
    ticket = ticket + 1000
  end
  return records
end

call('HDEL', KEYS[1], '\tnothing')
local answers = { now_text }
for at = 1, resources do
  answers[at + 1] = try(list, resource(at), tonumber(ARGV[4 + resources + at]))
end
return finish(answers)
