-- What kind of server this is. The name of its WAL file, which begins with the timeline and which a standby does not have,
-- and its start are its incarnation.
select case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end as walfile,
  pg_postmaster_start_time() as started,
  to_regprocedure('leasehold.version()') is not null as installed,
  -- The marker in the startup options of this server session; behind a pooler they are not ours.
  current_setting('leasehold_client.connection', true) as marker,
  current_setting('transaction_isolation') as isolation, current_setting('transaction_read_only') as read_only
