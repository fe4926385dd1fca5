-- What scripts that end leases share. Not for the fast ones: a function costs time even if it is not called.

-- Adds ended leases to the history, up to 16 in one entry of the stream, which is trimmed by entries. `ended` has the
-- ending and name of each, then its record.
local function append_history(ended)
  for at = 1, #ended, 32 do
    local last = math.min(#ended, at + 31)
    call('XADD', KEYS[2], 'MAXLEN', '~', sub(ARGV[2], 3, 8) + 0, '*', unpack(ended, at, last))
  end
end

local function is_remembered(ending)
  local history_mode = sub(ARGV[2], 2, 2)
  return history_mode == 'a' or history_mode == 'p' and ending ~= 'released' and ending ~= 'cancelled'
end

local function publish(channel, message)
  return call(sub(ARGV[2], 1, 1) == 'S' and 'SPUBLISH' or 'PUBLISH', channel, message)
end
