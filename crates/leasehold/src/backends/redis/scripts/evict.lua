-- Takes the lease with this fence away from its holder. Ports State::evict.
--
-- ARGV    after the name of the resource: expected fence (16 digits), problem as JSON
-- answer  {'evicted', record}  {'none', fence of each holder...}  {'newer'}  {'error', text}
--@ prelude.lua
--@ history.lua
--@ model.lua

local function evict(r, expected, problem)
  settle(r)
  local current = { 'none' }
  for _, record in ipairs((holders(r))) do
    local fence = sub(record, 69, 84)
    if fence == expected then
      local id = sub(record, 2, 33)
      remove(r, id, record, nil, 'evicted', now_text, ' ' .. problem)
      notify(sub(record, 176, 191), 'evicted ' .. id)
      grant(r)
      return { 'evicted', record }
    end
    current[#current + 1] = fence
  end
  return current
end

call('HDEL', KEYS[1], '\tnothing')
return finish({ try(evict, resource(1), ARGV[6], ARGV[7]) })
