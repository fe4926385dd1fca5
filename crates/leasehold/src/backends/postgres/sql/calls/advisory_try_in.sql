-- Keys. Answers for each whether this transaction has it now.
select pg_try_advisory_xact_lock(k) from unnest($1) as k
