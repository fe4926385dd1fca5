-- Adds reports about runs to the records of their names, and drops those that were reported longest ago.
-- Ports RunRecord::add and RunTable::trim.
--
-- KEYS    1 runs, a hash of name -> record  2 reported, a sorted set of names by the time of their last report
-- ARGV    3 how long a record is kept (µs)  4 how many are kept, then for each report: name, how many were skipped,
--         1 if one succeeded, who held the lock
-- answer  {}
--
-- A record: 1, how many were skipped, the time of the last skip, that of the last success (0 for never), who held it.
--@ prelude.lua

-- The most records that one call drops, so that no call keeps the server busy for long.
local MAX_DROPPED = 500

for at = 5, #ARGV, 4 do
  local name, skips, succeeded, holder = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2] == '1', ARGV[at + 3]
  local known = call('HGET', KEYS[1], name) or ''
  local count, skip, success, held_by = string.match(known, '^1 (%d+) (%d+) (%d+) (.*)$')
  if skips > 0 then
    skip, held_by = now_text, holder
  end
  local record = format('1 %.0f %s %s %s',
    (count or 0) + skips, skip or '0', succeeded and now_text or success or '0', held_by or '')
  call('HSET', KEYS[1], name, record)
  call('ZADD', KEYS[2], now_text, name)
end

local old = call('ZRANGEBYSCORE', KEYS[2], '-inf', format('%.0f', now_text - ARGV[3]), 'LIMIT', 0, MAX_DROPPED)
-- How many names are still too many once the old ones are gone.
local excess = math.min(MAX_DROPPED, call('ZCARD', KEYS[2]) - ARGV[4]) - #old
if excess > 0 then
  old = call('ZRANGE', KEYS[2], 0, #old + excess - 1)
end
if #old > 0 then
  call('HDEL', KEYS[1], unpack(old))
  call('ZREM', KEYS[2], unpack(old))
end
for at = 1, 2 do
  call('PEXPIRE', KEYS[at], format('%.0f', ARGV[3] / 1000))
end
return {}
