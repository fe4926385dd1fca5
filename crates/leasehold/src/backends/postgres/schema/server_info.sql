-- What kind of server this is. Its incarnation is its timeline, with which the name of its WAL file begins, and its start
-- time. On a standby `walfile` is null.
select case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end as walfile,
  pg_postmaster_start_time() as started,
  to_regprocedure('leasehold.version()') is not null as installed,
  -- The marker in the startup options of this server session; behind a pooler they are not ours.
  current_setting('leasehold_client.connection', true) as marker,
  current_setting('transaction_isolation') as isolation, current_setting('transaction_read_only') as read_only
