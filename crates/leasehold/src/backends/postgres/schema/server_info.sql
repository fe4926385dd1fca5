-- What kind of server this is. Timeline and start are its incarnation.
select pg_is_in_recovery() as in_recovery,
  case when pg_is_in_recovery() then 0 else
    ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint end as timeline,
  (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint as started_us,
  to_regprocedure('leasehold.version()') is not null as installed,
  -- The marker in the startup options of this server session; behind a pooler they are not ours.
  current_setting('leasehold_client.connection', true) as marker,
  current_setting('transaction_isolation') = 'read committed' and current_setting('transaction_read_only') = 'off'
    as default_transaction_ok
