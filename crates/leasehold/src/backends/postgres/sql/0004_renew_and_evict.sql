-- What the library calls for leases that it has.

-- State::renew for leases that hold and change nothing else: end = now + ttl, never earlier.
-- What lives by a connection needs no new end: it holds while that lives and is none of those that the caller has left,
-- or else is answered with no fence.
-- Waits for nobody. Elements that are locked, wait, or are gone are not answered: renew_each tells.
-- However many names there are, each is looked up by its key.
create function leasehold.renew_many(p_namespace text, p_left int[], p_names text[], p_ids uuid[], p_ttls_us bigint[])
returns table (at int, fence bigint, acquired_us bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  moved int;
  left_over int := cardinality(p_names);
begin
  perform leasehold._check_isolation();
  return query
    with mine as materialized (
      select x.ctid as tid, w.ttl_us * interval '1 microsecond' as length, w.ttl_us, w.at::int as at
      from unnest(p_names, p_ids, p_ttls_us) with ordinality as w(name, id, ttl_us, at) cross join lateral (
        select y.ctid from leasehold.resource y
        where y.namespace = p_namespace and y.name = w.name and y.id = w.id and y.expires_at > clock_timestamp()
          and y.session is null
        for no key update skip locked) x
    )
    update leasehold.resource x set renewed_at = clock_timestamp(),
      ttl_us = case when clock_timestamp() + m.length > x.expires_at then m.ttl_us else x.ttl_us end,
      expires_at = greatest(x.expires_at, clock_timestamp() + m.length)
    from mine m where x.ctid = m.tid
    returning m.at, x.fence, leasehold._micros(x.acquired_at);
  get diagnostics moved = row_count;
  left_over := left_over - moved;
  if left_over = 0 then
    return;
  end if;
  -- A holder among others is not in anybody's way either.
  return query
    with mine as materialized (
      select x.ctid as tid, w.ttl_us * interval '1 microsecond' as length, w.ttl_us, w.at::int as at
      from unnest(p_names, p_ids, p_ttls_us) with ordinality as w(name, id, ttl_us, at) cross join lateral (
        select y.ctid from leasehold.entry y
        where y.id = w.id and y.namespace = p_namespace and y.name = w.name and y.fence is not null
          and y.expires_at > clock_timestamp() and y.session is null
        for no key update skip locked) x
    )
    update leasehold.entry x set renewed_at = clock_timestamp(),
      ttl_us = case when clock_timestamp() + m.length > x.expires_at then m.ttl_us else x.ttl_us end,
      expires_at = greatest(x.expires_at, clock_timestamp() + m.length)
    from mine m where x.ctid = m.tid
    returning m.at, x.fence, leasehold._micros(x.acquired_at);
  get diagnostics moved = row_count;
  left_over := left_over - moved;
  if left_over = 0 then
    return;
  end if;
  return query
    select w.at::int, case when y.session <> all (p_left) and not leasehold._dead(y.session) then y.fence end,
      leasehold._micros(y.acquired_at)
    from unnest(p_names, p_ids) with ordinality as w(name, id, at) cross join lateral (
      select x.session, x.fence, x.acquired_at from leasehold.resource x
      where x.namespace = p_namespace and x.name = w.name and x.id = w.id and x.session is not null
      union all
      select x.session, x.fence, x.acquired_at from leasehold.entry x
      where x.id = w.id and x.namespace = p_namespace and x.name = w.name and x.session is not null and x.fence is not null) y;
end $$;

-- State::renew for whatever it is: one by one, waiting for locks.
create function leasehold.renew_each(
  p_namespace text, p_channel text, p_session int, p_left int[], p_history "char",
  p_names text[], p_ids uuid[], p_ttls_us bigint[], p_floors bigint[], p_modes "char"[], p_units int[], p_capacities int[],
  p_metadata jsonb[]
) returns setof leasehold.answer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
declare
  c leasehold.caller;
  u record;
  a leasehold.answer;
begin
  perform leasehold._check_isolation();
  c := row(p_namespace, p_channel, p_session, p_history, leasehold._watched(p_namespace));
  for u in
    select *, count(*) over (partition by x.name) > 1 as several from unnest(p_names, p_ids, p_ttls_us, p_floors, p_modes, p_units, p_capacities, p_metadata) with ordinality
      as x(name, id, ttl_us, floor, mode, units, capacity, metadata, at) order by x.name collate "C", x.at
  loop
    -- Whoever comes twice to a name takes its row and then the gate, as all others do.
    if u.several then
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = u.name for no key update;
      perform pg_advisory_xact_lock(leasehold._gate(p_namespace, u.name));
    end if;
    a := null;
    if p_left <> '{}' and exists (select from leasehold.entry x where x.id = u.id and x.namespace = p_namespace
        and x.name = u.name and x.fence is null and x.session = any (p_left)) then
      -- A place in the queue goes over to the connection that the caller has now. While there is none, nothing is said of
      -- it: it may be granted by the one that was left, and must not be believed.
      continue when p_session is null;
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = u.name for no key update;
      perform pg_advisory_xact_lock(leasehold._gate(p_namespace, u.name));
      update leasehold.entry x set session = p_session
      where x.id = u.id and x.namespace = p_namespace and x.name = u.name and x.fence is null and x.session = any (p_left);
    end if;
    -- What holds by a connection that the caller has left is no longer its own, though others see it yet.
    if p_left <> '{}' and (exists (select from leasehold.resource x where x.namespace = p_namespace and x.name = u.name
          and x.id = u.id and x.session = any (p_left))
        or exists (select from leasehold.entry x where x.id = u.id and x.namespace = p_namespace and x.name = u.name
          and x.fence is not null and x.session = any (p_left))) then
      a.verdict := 'n';
    else
      a := leasehold._operate(c, row('n', u.name, u.id, u.mode, u.units, u.capacity, u.ttl_us, null, null, null, null,
        u.metadata, u.floor, null, null, null)::leasehold.ask);
    end if;
    a.at := u.at;
    return next a;
  end loop;
end $$;

-- Drops the dead ahead of those who wait: nothing pushes when a connection dies.
-- Answers for each whether it still waits behind a connection, and what the caller's instance is to be told.
create function leasehold.settle_dead(p_namespace text, p_channel text, p_history "char", p_names text[], p_ids uuid[])
returns table (at int, waits boolean, hints text[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
declare
  c leasehold.caller;
  u record;
begin
  perform leasehold._check_isolation();
  c := row(p_namespace, p_channel, null, p_history, leasehold._watched(p_namespace));
  for u in
    select x.name, x.id, x.at::int as at, row_number() over (partition by x.name) = 1 as first
    from unnest(p_names, p_ids) with ordinality as x(name, id, at) order by x.name collate "C", 3
  loop
    hints := null;
    if u.first and (exists (select from leasehold.resource r where r.namespace = p_namespace and r.name = u.name
          and r.id is not null and leasehold._dead(r.session))
        or exists (select from leasehold.entry e where e.namespace = p_namespace and e.name = u.name
          and leasehold._dead(e.session))) then
      hints := (leasehold._operate(c, row('n', u.name, null, null, null, null, 0, null, null, null, null, null, null, null,
        null, null)::leasehold.ask)).hints;
    end if;
    at := u.at;
    waits := exists (select from leasehold.entry e
      where e.id = u.id and e.namespace = p_namespace and e.name = u.name and e.fence is null);
    return next;
  end loop;
end $$;

-- State::evict.
create function leasehold.evict_fence(
  p_namespace text, p_channel text, p_history "char", p_name text, p_fence bigint, p_reason text
) returns leasehold.answer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
begin
  perform leasehold._check_isolation();
  return leasehold._operate(row(p_namespace, p_channel, null, p_history, leasehold._watched(p_namespace)),
    row('e', p_name, null, null, null, null, null, null, null, null, null, null, p_fence, null, null, p_reason)::leasehold.ask);
end $$;
