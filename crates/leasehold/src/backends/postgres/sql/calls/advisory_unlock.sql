-- A key. Answers whether this connection had it.
select pg_advisory_unlock($1)
