-- In the order given, which is the same for all.
select pg_advisory_xact_lock(k) from unnest($1) as k
