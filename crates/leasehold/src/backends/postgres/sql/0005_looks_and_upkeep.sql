-- Looking at leases, following them, and keeping the tables small.

-- State::records for many resources: those that match, after a name, at most so many names.
-- Live ones only, those who hold before those who wait.
create function leasehold.list_leases(p_namespace text, p_exactly text, p_prefix text, p_after text, p_limit bigint)
returns table (name text, holder text, mode "char", units int, capacity int, fence bigint, acquired_us bigint, asked_us bigint,
  renewed_us bigint, ttl_us bigint, expires_us bigint, note text, metadata jsonb, now_us bigint)
language sql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
  with t as (select clock_timestamp() as now), live as (
    select r.name, 0::bigint as seq, r.holder, r.mode, r.units, r.capacity, r.fence, r.acquired_at, r.asked_at,
      r.renewed_at, r.ttl_us, r.expires_at, r.note, r.metadata
    from leasehold.resource r, t
    where r.namespace = p_namespace and r.id is not null and r.expires_at > t.now and not leasehold._dead(r.session)
      and (p_exactly is null or r.name = p_exactly) and (p_prefix is null or starts_with(r.name, p_prefix))
      and (p_after is null or r.name collate "C" > p_after)
    union all
    select e.name, e.seq, e.holder, e.mode, e.units, e.capacity, e.fence, e.acquired_at, e.asked_at,
      e.renewed_at, e.ttl_us, e.expires_at, e.note, e.metadata
    from leasehold.entry e, t
    where e.namespace = p_namespace and e.expires_at > t.now and not leasehold._dead(e.session)
      and (p_exactly is null or e.name = p_exactly) and (p_prefix is null or starts_with(e.name, p_prefix))
      and (p_after is null or e.name collate "C" > p_after)
  ), counted as (
    select l.*, dense_rank() over (order by l.name collate "C") as place from live l
  )
  select l.name, l.holder, l.mode, l.units, l.capacity, l.fence, leasehold._micros(l.acquired_at), leasehold._micros(l.asked_at),
    leasehold._micros(l.renewed_at), l.ttl_us, leasehold._micros(nullif(l.expires_at, 'infinity')), l.note, l.metadata,
    leasehold._micros(t.now)
  from counted l, t where l.place <= p_limit
  order by l.name collate "C", l.fence is null, l.seq
$$;

-- Ended leases, newest first: EndedLease. Planned for what is asked: failures and single names have indexes of their own.
create function leasehold.list_ended(
  p_namespace text, p_exactly text, p_prefix text, p_failures boolean, p_since_us bigint, p_until_us bigint, p_limit bigint
) returns table (name text, holder text, mode "char", units int, capacity int, fence bigint, asked_us bigint, acquired_us bigint,
  ended_us bigint, ending text, problem text, details text, note text, metadata jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
set plan_cache_mode = force_custom_plan as $$
begin
  return query
    select h.name, h.holder, h.mode, h.units, h.capacity, h.fence, leasehold._micros(h.asked_at), leasehold._micros(h.acquired_at),
      leasehold._micros(h.ended_at), h.ending, h.problem, h.details, h.note, h.metadata
    from (
      select * from leasehold.ended x
      where x.namespace = p_namespace
        and (p_exactly is null or x.name = p_exactly) and (p_prefix is null or starts_with(x.name, p_prefix))
        and (not p_failures or x.ending not in ('released', 'cancelled'))
        and (p_since_us is null or x.ended_at >= to_timestamp(0) + p_since_us * interval '1 microsecond')
        and (p_until_us is null or x.ended_at < to_timestamp(0) + p_until_us * interval '1 microsecond')
      order by x.ended_at desc limit p_limit
    ) h order by h.ended_at desc;
end $$;

-- Asks to be told of events for a minute; answers the channel to listen to.
create function leasehold.watch(p_namespace text, p_channel text) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  ends timestamptz := clock_timestamp() + interval '60 s';
begin
  insert into leasehold.watcher values (p_channel, p_namespace, ends) on conflict (channel) do update set until = excluded.until;
  perform setval('leasehold.followed_until', leasehold._micros(ends));
  return leasehold._event_channel(p_namespace);
end $$;

-- Makes this connection one that leases live by; answers its number.
create function leasehold.open_session(p_client text) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  -- A lock of this connection outlives the rollback of what recorded it: it is used again.
  opened int := leasehold._own_session();
begin
  if opened is null then
    -- Numbers come again one day; one whose connection still lives is passed over.
    loop
      opened := nextval('leasehold.session_id');
      exit when pg_try_advisory_lock(leasehold._class(), opened);
    end loop;
  end if;
  insert into leasehold.session values (opened, pg_backend_pid(), clock_timestamp(), p_client)
  on conflict (id) do update set pid = excluded.pid, opened_at = excluded.opened_at, client = excluded.client;
  return opened;
end $$;

-- Bounded work that keeps the tables small; any client may call it at any time, a scheduled job too. It looks at ten thousand
-- names at a time, from where the last call stopped, until it has changed so many rows or worked for a fifth of a second.
-- Answers how much was done: 250 or more, and there may be more to do; 0 when another does it just now.
create function leasehold.maintain(p_keep_history interval default '7 days', p_most int default 1000) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
declare
  t timestamptz := clock_timestamp();
  after leasehold.upkeep;
  till leasehold.upkeep;
  done int := 0;
  settled int;
  removed int;
begin
  perform leasehold._check_isolation();
  if p_keep_history < interval '1 day' and not pg_has_role(session_user, current_user, 'member') then
    raise exception 'history younger than a day is removed by the owner of the schema only' using errcode = '42501';
  end if;
  if not pg_try_advisory_xact_lock(leasehold._class(), 0) then
    return 0;
  end if;
  select * into after from leasehold.upkeep;
  if not found then
    insert into leasehold.upkeep values ('', '') returning * into after;
  end if;
  loop
    select r.namespace, r.name into till from leasehold.resource r
    where (r.namespace, r.name) > (after.namespace, after.name) order by r.namespace, r.name offset 9999 limit 1;
    -- Two advisory locks stay for each until the end, and a small server has some three thousand for all.
    settled := leasehold._settle_range(after, till, t, least(p_most, 250));
    done := done + settled;
    -- Names that nobody used for a day; a fence ahead of the clock is remembered.
    delete from leasehold.resource r where (r.namespace, r.name) in (
      select x.namespace, x.name from leasehold.resource x
      where (x.namespace, x.name) > (after.namespace, after.name)
        and (till.name is null or (x.namespace, x.name) <= (till.namespace, till.name))
        and x.id is null and not x.crowd and x.renewed_at < t - interval '1 day' and x.last_fence < leasehold._micros(t)
      limit p_most for update skip locked);
    get diagnostics removed = row_count;
    done := done + removed;
    -- A range with more to do is come back to.
    exit when settled >= 250 or done >= p_most;
    if till.name is null then
      after := row('', '');
      exit;
    end if;
    after := till;
    exit when clock_timestamp() > t + interval '200 ms';
  end loop;
  update leasehold.upkeep u set namespace = after.namespace, name = after.name
  where (u.namespace, u.name) <> (after.namespace, after.name);
  with recursive space(namespace) as (
    (select h.namespace from leasehold.ended h order by h.namespace limit 1)
    union all
    select (select h.namespace from leasehold.ended h where h.namespace > s.namespace order by h.namespace limit 1)
    from space s where s.namespace is not null
  )
  delete from leasehold.ended h where h.ctid = any (array(
    select x.ctid from space s cross join lateral (
      select y.ctid from leasehold.ended y where y.namespace = s.namespace and y.ended_at < t - p_keep_history
      order by y.ended_at limit p_most) x
    limit p_most));
  get diagnostics removed = row_count;
  done := done + removed;
  delete from leasehold.watcher w where w.until < t;
  delete from leasehold.session_lease l where l.id = any (array(
    select x.id from leasehold.session_lease x where leasehold._dead(x.session) limit p_most));
  get diagnostics removed = row_count;
  done := done + removed;
  -- Last: what lives by a session is settled before its row is gone.
  delete from leasehold.session s where s.id = any (array(
    select x.id from leasehold.session x where leasehold._dead(x.id) limit p_most));
  get diagnostics removed = row_count;
  return done + removed;
end $$;

-- Settles the names of a range whose leases ran out or whose connection died, and that nobody asks for.
create function leasehold._settle_range(after leasehold.upkeep, till leasehold.upkeep, t timestamptz, p_most int) returns int
language plpgsql volatile as $$
declare
  u record;
  done int := 0;
begin
  for u in
    select namespace, name from (
      select r.namespace, r.name from leasehold.resource r
      where (r.namespace, r.name) > (after.namespace, after.name)
        and (till.name is null or (r.namespace, r.name) <= (till.namespace, till.name)) and (
          r.id is not null and (r.expires_at <= t or leasehold._dead(r.session))
          -- The last of many readers leaves without writing the row.
          or r.crowd and r.renewed_at < t - interval '1 day'
            and not exists (select from leasehold.entry e where e.namespace = r.namespace and e.name = r.name))
      union all
      select e.namespace, e.name from leasehold.entry e
      where (e.namespace, e.name) > (after.namespace, after.name)
        and (till.name is null or (e.namespace, e.name) <= (till.namespace, till.name))
        and (e.expires_at <= t or leasehold._dead(e.session))
    ) lapsed group by 1, 2 order by namespace collate "C", name collate "C" limit p_most
  loop
    -- One that somebody keeps locked, or a guarded transaction relies on, does not keep the others from being tidied up.
    perform 1 from leasehold.resource r where r.namespace = u.namespace and r.name = u.name for no key update skip locked;
    continue when not found or not pg_try_advisory_xact_lock(leasehold._gate(u.namespace, u.name))
      or not leasehold._pass(u.namespace, u.name);
    perform leasehold._operate(row(u.namespace, null, null, 'a', leasehold._watched(u.namespace)),
      row('n', u.name, null, null, null, null, 0, null, null, null, null, null, null, null, null, null)::leasehold.ask);
    done := done + 1;
  end loop;
  return done;
end $$;
