-- The beginning of every script: the arguments that all share, and the time.
--
-- ARGV  1 epoch: what the client last read from the partition's field `\tmemory`; a script that finds another does
--         nothing and answers 'begin'
--       2 settings, in columns: how to push(1): P publish, S sharded publish, B publish without knowing who receives
--         it; history(2): a all, p problems, o off; how many entries of the history to keep(3-8); the time to go by instead of
--         the server's, for tests(9-24)
--
-- `leases` is a hash, a partition's index of its live names. The value of a name begins with its form and format:
--   1   a lone holder: its record
--   s1  holders that share it while nobody waits, with a hash of their own, and their state in columns: units used(4-13),
--       when the first of them ends, or earlier(15-30), newest fence(32-47), shape(49-59)
--   q1  a queue, with three keys of its own, and its state: last ticket, units used, how many wait, last ticket
--       skipped as unreachable (`skipped_to`), a lower bound of the earliest expiry (`not_before`), newest fence, shape
-- No name holds a control character, so fields that begin with a tab are the partition's own:
--   memory   the epoch, under its old name: format, run id of the server, when it began (40 and 16 columns)
--   fence    the highest fence of a lease that has ended: the fences of those that hold are in their own values
--   watched  until when somebody watches
--   sweep    when the next sweep is due, and where it goes on
--
-- A record has fixed columns, then two lines:
--   1(1) id(2-33) ends(35-50) renewed(52-67) fence(69-84) asked(86-101) acquired(103-118) ttl(120-132) floor(134-149)
--   capacity(151-160) family(161) units(163-172) mode(174) instance(176-191) \n holder and note as JSON \n metadata
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
