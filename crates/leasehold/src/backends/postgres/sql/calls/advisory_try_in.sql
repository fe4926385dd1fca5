select pg_try_advisory_xact_lock(k) from unnest($1) as k
