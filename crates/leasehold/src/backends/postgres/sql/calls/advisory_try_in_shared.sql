-- Keys. Answers for each whether this transaction shares it now.
select pg_try_advisory_xact_lock_shared(k) from unnest($1) as k
