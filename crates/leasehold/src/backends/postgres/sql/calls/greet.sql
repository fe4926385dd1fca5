-- What kind of server this is. Timeline and start are its incarnation.
select pg_backend_pid() as pid, pg_is_in_recovery() as in_recovery,
  case when pg_is_in_recovery() then 0 else
    ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint end as timeline,
  (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint as started_us,
  to_regprocedure('leasehold.version()') is not null as installed,
  coalesce((select bool_and(pg_has_role(t.relowner, 'usage') and pg_has_role(p.proowner, 'usage'))
    from pg_class t join pg_proc p on p.pronamespace = t.relnamespace and p.proname in ('_acquire_one', '_release_one')
    where t.oid = to_regclass('leasehold.resource')), false) as owned
