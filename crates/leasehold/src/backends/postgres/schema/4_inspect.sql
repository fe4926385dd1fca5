-- Looking at leases, watching events, and the records of runs.

-- State::records for many resources: those that match, after a name, at most so many names.
-- Live ones only, those who hold before those who wait.
create function leasehold.list_leases(p_namespace text, p_exactly text, p_prefix text, p_after text, p_limit bigint)
returns table (name text, holder text, mode "char", units int, capacity int, fence bigint, acquired_us bigint, asked_us bigint,
  renewed_us bigint, ttl_us bigint, expires_us bigint, note text, metadata jsonb, now_us bigint)
language sql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
  with t as (select clock_timestamp() as now), live as (
    select l.* from leasehold._lease l, t
    where l.namespace = p_namespace and l.expires_at > t.now and not leasehold._session_dead(l.session)
      and (p_exactly is null or l.name = p_exactly) and (p_prefix is null or starts_with(l.name, p_prefix))
      and (p_after is null or l.name collate "C" > p_after)
  ), counted as (
    select l.*, dense_rank() over (order by l.name collate "C") as place from live l
  )
  select l.name, l.holder, l.mode, l.units, l.capacity, l.fence, leasehold._micros(l.acquired_at), leasehold._micros(l.asked_at),
    leasehold._micros(l.renewed_at), l.ttl_us, leasehold._micros(nullif(l.expires_at, 'infinity')), l.note, l.metadata,
    leasehold._micros(t.now)
  from counted l, t where l.place <= p_limit
  order by l.name collate "C", l.fence is null, l.seq
$$;

-- Leases that have expired or whose session died, and that nobody settled yet: history shows them as ended.
create view leasehold._unsettled_ended as
  select l.*, case when l.expires_at <= clock_timestamp() then 'expired' else 'disconnected' end as ending
  from leasehold._lease l where l.expires_at <= clock_timestamp() or leasehold._session_dead(l.session);

-- Ended leases, newest first: EndedLease. Planned for what is asked: failures and single names have indexes of their own.
create function leasehold.list_ended(
  p_namespace text, p_exactly text, p_prefix text, p_failures boolean, p_since_us bigint, p_until_us bigint, p_limit bigint
) returns table (name text, holder text, mode "char", units int, capacity int, fence bigint, asked_us bigint, acquired_us bigint,
  ended_us bigint, ending text, problem text, details text, note text, metadata jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
set plan_cache_mode = force_custom_plan as $$
declare
  since timestamptz := coalesce(to_timestamp(0) + p_since_us * interval '1 microsecond', '-infinity');
  until timestamptz := coalesce(to_timestamp(0) + p_until_us * interval '1 microsecond', 'infinity');
begin
  return query
    select h.name, h.holder, h.mode, h.units, h.capacity, h.fence, leasehold._micros(h.asked_at), leasehold._micros(h.acquired_at),
      leasehold._micros(h.ended_at), h.ending, h.problem, h.details, h.note, h.metadata
    from (
      (select x.name, x.holder, x.mode, x.units, x.capacity, x.fence, x.asked_at, x.acquired_at, x.ended_at, x.ending, x.problem,
        x.details, x.note, x.metadata
      from leasehold.ended x
      where x.namespace = p_namespace
        and (p_exactly is null or x.name = p_exactly) and (p_prefix is null or starts_with(x.name, p_prefix))
        and (not p_failures or x.ending not in ('released', 'cancelled')) and x.ended_at >= since and x.ended_at < until
      order by x.ended_at desc limit p_limit)
      union all
      select l.name, l.holder, l.mode, l.units, l.capacity, l.fence, l.asked_at, l.acquired_at,
        least(l.expires_at, clock_timestamp()), l.ending, null, null, l.note, l.metadata
      from leasehold._unsettled_ended l
      where l.namespace = p_namespace
        and (p_exactly is null or l.name = p_exactly) and (p_prefix is null or starts_with(l.name, p_prefix))
        and least(l.expires_at, clock_timestamp()) >= since and least(l.expires_at, clock_timestamp()) < until
    ) h order by h.ended_at desc limit p_limit;
end $$;

-- Watches the events of a namespace for a minute; returns the channel to listen on.
create function leasehold.watch(p_namespace text, p_channel text) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  ends timestamptz := clock_timestamp() + interval '60 s';
begin
  -- Block maintain() from resetting the flag before this commits.
  perform pg_advisory_xact_lock_shared(leasehold._session_lock_class(), 0);
  insert into leasehold.watcher values (p_channel, p_namespace, ends) on conflict (channel) do update set until = excluded.until;
  perform nextval('leasehold.watched');
  return leasehold._event_channel(p_namespace);
end $$;

-- Adds reports to the records of runs: RunRecord::add, and where a name was added RunTable::trim. They come in the order of
-- their names, so that two calls cannot deadlock.
create function leasehold.record_runs(
  p_namespace text, p_kept_us bigint, p_most int, p_names text[], p_skips bigint[], p_held_by text[], p_successes boolean[]
) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  t timestamptz := clock_timestamp();
  is_new boolean;
  is_larger boolean := false;
begin
  for i in 1 .. cardinality(p_names) loop
    insert into leasehold.run as r values (p_namespace, p_names[i], p_skips[i], case when p_skips[i] > 0 then t end,
      case when p_skips[i] > 0 then p_held_by[i] end, case when p_successes[i] then t end, t)
    on conflict (namespace, name) do update set skips = r.skips + excluded.skips,
      held_by = case when excluded.last_skip is null then r.held_by else excluded.held_by end,
      last_skip = coalesce(excluded.last_skip, r.last_skip), last_success = coalesce(excluded.last_success, r.last_success),
      reported_at = excluded.reported_at
    returning r.xmax = 0 into is_new;
    is_larger := is_larger or is_new;
  end loop;
  if is_larger then
    delete from leasehold.run r where r.namespace = p_namespace and r.name in (
      select x.name from leasehold.run x
      where x.namespace = p_namespace and x.reported_at < t - p_kept_us * interval '1 microsecond'
      union all
      (select x.name from leasehold.run x where x.namespace = p_namespace order by x.reported_at desc, x.name desc offset p_most));
  end if;
  -- A crash may cost a count or two; nobody waits for the disk.
  perform set_config('synchronous_commit', 'off', true);
end $$;

-- RunTable::select.
create function leasehold.list_runs(p_namespace text, p_kept_us bigint, p_exactly text, p_prefix text)
returns table (name text, skips bigint, last_skip_us bigint, held_by text, last_success_us bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select r.name, r.skips, leasehold._micros(r.last_skip), r.held_by, leasehold._micros(r.last_success) from leasehold.run r
  where r.namespace = p_namespace and (p_exactly is null or r.name = p_exactly)
    and (p_prefix is null or starts_with(r.name, p_prefix))
    and r.reported_at >= clock_timestamp() - p_kept_us * interval '1 microsecond'
  order by r.name
$$;
