-- A key. Answers whether this connection has it now.
select pg_try_advisory_lock($1)
