-- What scripts that end leases share. Not for the fast ones: a function costs time even if it is not called.
-- Remembers leases that ended, a few in one entry of the stream, which is trimmed by entries. `pairs` has the ending
-- and name of each, then its record.
local function remember(pairs)
  for at = 1, #pairs, 32 do
    local last = math.min(#pairs, at + 31)
    call('XADD', KEYS[2], 'MAXLEN', '~', sub(ARGV[2], 3, 8) + 0, '*', unpack(pairs, at, last))
  end
end

local function is_remembered(how)
  local which = sub(ARGV[2], 2, 2)
  return which == 'a' or which == 'p' and how ~= 'released' and how ~= 'cancelled'
end

local function publish(channel, message)
  return call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', channel, message)
end
