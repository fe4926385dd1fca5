-- Remembers leases that ended: one entry of the stream for all of them, numbered by how many have ended so far, so
-- that trimming counts leases and not calls. `pairs` has the name of each, then its ending and record.
local function remember(pairs)
  if #pairs > 0 then
    local count = call('HINCRBY', KEYS[1], '\tended', #pairs / 2)
    local oldest = format('%.0f', math.max(0, count - sub(ARGV[2], 3, 8)))
    call('XADD', KEYS[2], 'MINID', '~', oldest, format('%.0f-0', count), unpack(pairs))
  end
end

local function is_remembered(how)
  local which = sub(ARGV[2], 2, 2)
  return which == 'a' or which == 'p' and how ~= 'released' and how ~= 'cancelled'
end
