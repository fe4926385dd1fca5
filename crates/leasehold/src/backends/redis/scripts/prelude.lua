-- The beginning of every script: the arguments that all share, and the time.
--
-- ARGV  1 epoch: what the client last read from the partition's field `\tmemory`; a script that finds another does
--         nothing and answers 'other_epoch'
--       2 settings, in columns: how to push(1): P publish, S sharded publish, B publish without knowing who receives
--         it; history(2): a all, p problems, o off; how many entries of the history to keep(3-8); for tests, the time
--         to use instead of the server's(9-24)
--
-- `leases` is a hash, a partition's index of its live names. The value of a name begins with its form and format:
--   1   a lone holder, which has the name without a queue: its record
--   q2  several holders, or a queue, and their state: a space, or * if fast scripts cannot handle it(3), units
--       used(4-13), how many wait(15-24), first and last ticket in the queue(26-41, 43-58), a time before which no
--       entry ends(60-75), newest fence(77-92), shape, which is capacity and family(94-104); if fast scripts cannot
--       handle it, also the last ticket skipped as unreachable, and of an unfinished search for expired entries the
--       cursor and the earliest end found; on the next line the record of the holder, if there is exactly one
-- Such a name has a hash `entries`: id -> record of a holder, if there are several; ticket -> record and
-- id -> ticket of each waiter. Tickets rise, and those of waiters who left early are missing.
-- No name holds a control character, so fields that begin with a tab are the partition's own:
--   memory   the epoch, under its old name: format, run id of the server, when it began (40 and 16 columns)
--   fence    the highest fence of a lease that has ended: the fences of those that hold are in their own values
--   watched  until when somebody watches
--   sweep    when the next sweep is due, and where it goes on
--
-- A record has fixed columns, then two lines:
--   1(1) id(2-33) ends(35-50) renewed(52-67) fence(69-84) asked(86-101) acquired(103-118) ttl(120-132) floor(134-149)
--   capacity(151-160) family(161) units(163-172) mode(174) instance(176-191) \n holder and note as JSON \n metadata
-- Numbers are padded with zeros to a fixed width: as strings they compare like numbers, and Lua converts them for
-- arithmetic.
-- Times are µs; fence and acquired are zeros while it waits.
--
-- Redis checks maxmemory only before a script's first write and never refuses HDEL, so later writes pass. Scripts that
-- must work when memory is full first delete `\tnothing`, a field that never exists.
local call, sub, format = redis.call, string.sub, string.format
local now_text = sub(ARGV[2], 9)
if now_text == '' then
  local time = call('TIME')
  now_text = time[1] .. (#time[2] == 6 and time[2] or sub('00000' .. time[2], -6))
end
