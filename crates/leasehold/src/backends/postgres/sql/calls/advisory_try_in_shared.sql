select pg_try_advisory_xact_lock_shared(k) from unnest($1) as k
