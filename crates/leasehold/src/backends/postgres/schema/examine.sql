-- What endangers locks on this server, as far as this role may see.
select quote_ident(current_user) as role,
  quote_ident(current_database()) as database,
  current_setting('server_version') as version,
  current_setting('server_version_num')::int as version_number,
  current_setting('default_transaction_isolation') as isolation,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('fsync') as fsync,
  current_setting('max_connections')::int as max_connections,
  (select count(*)::int from pg_stat_activity) as in_use,
  current_setting('idle_session_timeout', true) as idle_session_timeout,
  (select count(*)::int from pg_stat_replication where sync_state = 'async') as async_standbys,
  pg_notification_queue_usage()::float8 as notification_queue,
  (select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float8 from pg_stat_activity
    where backend_xmin is not null and pid <> pg_backend_pid()) as oldest_snapshot_s,
  current_setting('autovacuum') as autovacuum,
  inet_client_addr() is not null as by_network,
  current_setting('tcp_keepalives_idle')::int as keepalives_idle,
  current_setting('tcp_user_timeout')::int as unconfirmed_ms,
  (select coalesce(sum(s.n_dead_tup), 0)::bigint from pg_stat_all_tables s
    where s.relid in (to_regclass('leasehold.resource'), to_regclass('leasehold.entry'))) as dead_rows,
  (select coalesce(sum(s.n_live_tup), 0)::bigint from pg_stat_all_tables s
    where s.relid in (to_regclass('leasehold.resource'), to_regclass('leasehold.entry'))) as live_rows,
  -- Transactions older than 2 s that lock our rows, or may, or share a guard lock (see _guard_lock_class()).
  (select string_agg(format('process %s of %s (%s) since %s s', a.pid, a.usename, coalesce(nullif(a.application_name, ''), '?'),
      extract(epoch from clock_timestamp() - a.xact_start)::int), ', ' order by a.xact_start)
    from pg_stat_activity a where a.pid <> pg_backend_pid() and a.xact_start < clock_timestamp() - interval '2 s' and exists (
      select from pg_locks l where l.pid = a.pid and l.granted and (
        l.mode in ('RowShareLock', 'RowExclusiveLock')
          and l.relation in (to_regclass('leasehold.resource'), to_regclass('leasehold.entry'))
        or l.locktype = 'advisory' and l.mode = 'ShareLock' and l.objsubid = 2
          and l.classid = (to_regclass('leasehold.resource')::oid::int # 1279807556)::oid and a.datname = current_database()))) as blocking_transactions,
  -- The same, prepared and forgotten: no process has them.
  (select string_agg(format('%s of %s since %s s', p.gid, p.owner, extract(epoch from clock_timestamp() - p.prepared)::int),
      ', ' order by p.prepared)
    from pg_prepared_xacts p where p.database = current_database() and p.prepared < clock_timestamp() - interval '2 s' and exists (
      select from pg_locks x join pg_locks l on l.virtualtransaction = x.virtualtransaction and l.pid is null and (
        l.mode in ('RowShareLock', 'RowExclusiveLock')
          and l.relation in (to_regclass('leasehold.resource'), to_regclass('leasehold.entry'))
        or l.locktype = 'advisory' and l.mode = 'ShareLock' and l.objsubid = 2
          and l.classid = (to_regclass('leasehold.resource')::oid::int # 1279807556)::oid)
      where x.locktype = 'transactionid' and x.pid is null and x.transactionid = p.transaction)) as prepared,
  (select string_agg(distinct t.pubname, ', ') from pg_publication_tables t
    where t.schemaname = 'leasehold' and t.tablename = 'resource') as publications,
  pg_has_role('pg_read_all_stats', 'usage') as sees_all,
  (select s.setting::int from pg_settings s where s.name = 'statement_timeout') as statement_timeout_ms
