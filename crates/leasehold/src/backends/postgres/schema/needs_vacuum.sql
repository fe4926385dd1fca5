-- Whether the queues left many dead rows behind, and this role may vacuum them.
select exists (
  select from pg_stat_all_tables s join pg_class c on c.oid = s.relid
  where s.relid = to_regclass('leasehold.entry') and s.n_dead_tup > 5000 and pg_has_role(c.relowner, 'usage')) as needs_vacuum
