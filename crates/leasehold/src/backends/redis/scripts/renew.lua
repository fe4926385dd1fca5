-- Handles the renewals that the fast script does not: of waiters, of names that fast scripts cannot handle, and those
-- that change more than the end. Ports State::renew.
--
-- ARGV    after the names of the resources, six for each: number of the resource, lease id, ttl (13 digits), floor of
--         the fence (16 digits), the claim after a downgrade as in columns 151 to 174 of a record or '', metadata as
--         JSON or ''
-- answer  for each how it stands, as in decide.lua, or {'gone'}, {'newer'}, {'error', text}
--@ prelude.lua
--@ history.lua
--@ model.lua

local function renew(r, id, ttl, floor, downgrade, metadata)
  local record, ticket = settle(r, id)
  if not record then
    return { 'gone' }
  end
  record = prolong(record, ttl)
  if metadata ~= '' then
    record = string.match(record, '^[^\n]*\n[^\n]*\n') .. metadata
  end
  local new_units, old_units = tonumber(sub(downgrade, 13, 22)), tonumber(sub(record, 163, 172))
  if downgrade ~= '' and sub(downgrade, 1, 11) == r.shape and new_units <= old_units then
    record = sub(record, 1, 150) .. downgrade .. sub(record, 175)
    if not ticket then
      r.used = r.used + new_units - old_units
    end
  end
  if not ticket and floor > r.fence and tonumber(floor) <= max(now + FENCE_LEAD, tonumber(r.fence)) then
    record = sub(record, 1, 68) .. floor .. sub(record, 85)
    r.fence = floor
  end
  put(r, id, record, ticket)
  grant(r, id)
  return standing(r, entry(r, id))
end

call('HDEL', KEYS[1], '\tnothing')
local answers = {}
for i = 5 + resources, #ARGV, 6 do
  local r = resource(tonumber(ARGV[i]))
  answers[#answers + 1] = try(renew, r, unpack(ARGV, i + 1, i + 5))
end
return finish(answers)
