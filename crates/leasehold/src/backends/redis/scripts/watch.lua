-- Enables publishing of events for a while.
--
-- KEYS    1 leases
-- ARGV    3 for how long (µs)
-- answer  {}
--@ prelude.lua

if call('HGET', KEYS[1], '\tmemory') ~= ARGV[1] then
  return 'other_epoch'
end
call('HDEL', KEYS[1], '\tnothing')
call('HSET', KEYS[1], '\twatched', format('%016.0f', now_text + ARGV[3]))
return {}
