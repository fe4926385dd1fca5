-- What endangers locks on this server, as far as this role may see.
select current_setting('server_version') as version,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('fsync') as fsync,
  current_setting('max_connections')::int as max_connections,
  (select count(*)::int from pg_stat_activity) as in_use,
  current_setting('idle_session_timeout', true) as idle_session_timeout,
  (select count(*)::int from pg_stat_replication where sync_state = 'async') as async_standbys,
  pg_notification_queue_usage()::float8 as notification_queue,
  (select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float8 from pg_stat_activity
    where backend_xmin is not null and pid <> pg_backend_pid()) as oldest_snapshot_s,
  (extract(epoch from clock_timestamp()) * 1000000)::bigint as now_us
