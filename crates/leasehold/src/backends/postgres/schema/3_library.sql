-- What the library calls: operations in arrays, so that concurrent calls share
-- a round trip and a commit. Elements are taken in the order of their names (by
-- their bytes), so that two calls cannot deadlock.
--
-- `set seq_page_cost = 100`, here and in 6_any_client.sql: plans are cached, and must use the
-- indices also if they were made while the tables were tiny.

-- Lock calls read what others committed a moment ago; a fixed snapshot would not see it.
create function leasehold._check_isolation() returns void
language plpgsql stable as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'leasehold works in READ COMMITTED transactions only, this one is %',
      upper(current_setting('transaction_isolation'))
      using errcode = 'LH001', hint = 'Begin with: BEGIN ISOLATION LEVEL READ COMMITTED, or set default_transaction_isolation.';
  end if;
end $$;

-- State::acquire. A free name is taken by one update of its row; otherwise continues in _acquire_contended.
-- Flat parameters: a composite for each call would cost as much as the update.
create function leasehold._acquire(
  p_namespace text, p_channel text, p_session int, p_history "char", p_watched boolean,
  p_name text, p_id uuid, p_mode "char", p_units int, p_capacity int, p_ttl_us bigint, p_max_ahead int, p_attached boolean,
  p_holder text, p_note text, p_metadata jsonb, p_floor bigint, out a leasehold.answer
)
language plpgsql volatile as $$
declare
  t timestamptz := clock_timestamp();
  began timestamptz := t;
  freed timestamptz;
begin
  -- UPDATE does not lock rows that do not match.
  update leasehold.resource x set id = p_id, mode = p_mode, units = p_units, capacity = p_capacity, holder = p_holder,
    note = p_note, metadata = p_metadata, ttl_us = p_ttl_us, expires_at = leasehold._expiry(t, p_attached, p_session, p_ttl_us),
    asked_at = t, renewed_at = t, acquired_at = greatest(t, x.freed_at), session = case when p_attached then p_session end,
    channel = p_channel, last_fence = 0,
    fence = leasehold._next_fence(greatest(x.last_fence, x.fence), leasehold._micros(t), p_floor)
  where x.namespace = p_namespace and x.name = p_name and x.id is null and not x.has_entries
  returning x.fence, leasehold._micros(x.acquired_at), x.freed_at into a.fence, a.acquired_us, freed;
  if not found then
    perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = p_name;
    if found and p_mode <> 's' and coalesce(p_max_ahead, 0) >= 0 and not p_watched and (p_session is null or not p_attached) then
      a := leasehold._join_queue(p_namespace, p_channel, p_name, p_id, p_mode, p_units, p_capacity, p_ttl_us, p_max_ahead,
        p_holder, p_note, p_metadata, p_floor);
      if a.verdict is not null then
        return;
      end if;
    elsif not found then
      insert into leasehold.resource (namespace, name, last_fence, fence, id, mode, units, capacity, holder, note, metadata,
        ttl_us, expires_at, asked_at, renewed_at, acquired_at, session, channel)
      values (p_namespace, p_name, 0, leasehold._next_fence(0, leasehold._micros(t), p_floor), p_id, p_mode, p_units, p_capacity,
        p_holder, p_note, p_metadata, p_ttl_us, leasehold._expiry(t, p_attached, p_session, p_ttl_us), t, t, t,
        case when p_attached then p_session end, p_channel)
      on conflict do nothing returning fence, leasehold._micros(acquired_at), '-infinity'::timestamptz into a.fence, a.acquired_us, freed;
    end if;
  end if;
  -- The row may have been removed by upkeep although a guard is open: check here too.
  if a.fence is not null and not leasehold._may_grant_free(p_namespace, p_name, freed) then
    update leasehold.resource x set id = null where x.namespace = p_namespace and x.name = p_name;
    a.fence := null;
  end if;
  if a.fence is null then
    a := leasehold._acquire_contended(row(p_namespace, p_channel, p_session, p_history, p_watched),
      row('a', p_name, p_id, p_mode, p_units, p_capacity, p_ttl_us, p_max_ahead, p_attached, p_holder, p_note, p_metadata, p_floor,
        null, null, null)::leasehold.operation);
    return;
  end if;
  -- 1. The clock is read. 2. The write waits for another's transaction. 3. That rolls back: the row is as it was, and the
  -- lease would have ended before it began.
  t := clock_timestamp();
  if t not between began and began + interval '10 ms' then
    update leasehold.resource x set expires_at = leasehold._expiry(t, p_attached, p_session, p_ttl_us), asked_at = t,
      renewed_at = t, acquired_at = greatest(t, x.freed_at)
    where x.namespace = p_namespace and x.name = p_name
    returning leasehold._micros(x.acquired_at) into a.acquired_us;
  end if;
  a.verdict := 'g';
  if p_watched then
    perform leasehold._event(p_namespace, t, p_name, p_holder, p_mode, p_units, p_capacity,
      jsonb_build_object('event', 'acquired', 'fence', a.fence));
  end if;
end $$;

-- State::acquire for a name that was not free: a try that must fail only reads, a reader among readers
-- adds its own row, all others go to _operate.
create function leasehold._acquire_contended(c leasehold.caller, q leasehold.operation, out a leasehold.answer)
language plpgsql volatile as $$
declare
  t timestamptz := clock_timestamp();
  r leasehold.resource;
  ordinal bigint;
begin
  select * into r from leasehold.resource x where x.namespace = c.namespace and x.name = q.name;
  if found and r.id is distinct from q.id then
    -- Readers that did not write the row are not counted in it.
    if coalesce(q.max_ahead, 0) < 0 and (case when r.reader_base is null then
        r.has_entries and (r.waiting > 0 or r.used + q.units + (case when r.id is null then 0 else r.units end) > q.capacity)
        and leasehold._settled(r, t) and leasehold._same_shape(r, q)
      else
        q.mode = 'x' and exists (select from leasehold.entry e where e.namespace = c.namespace and e.name = q.name
          and e.mode = 's' and e.fence is not null and e.expires_at > t and not leasehold._session_dead(e.session))
      end)
      and not exists (select from leasehold.entry e where e.id = q.id and e.namespace = c.namespace and e.name = q.name) then
      a.verdict := 'b';
      a.waiting := r.waiting;
      a.holders := leasehold._holders(c.namespace, q.name, t);
      return;
    end if;
    -- If this id has an entry, `_operate` decides.
    if q.mode = 's' and q.floor is null and r.reader_base is not null and leasehold._micros(t) - r.last_fence < 100000
      and (select s.last_value from leasehold.reader s) - r.reader_base < 90000
      and not exists (select from leasehold.entry e where e.id = q.id and e.namespace = c.namespace and e.name = q.name) then
      perform pg_advisory_xact_lock_shared(leasehold._reader_lock(c.namespace, q.name));
      select * into r from leasehold.resource x where x.namespace = c.namespace and x.name = q.name;
      t := clock_timestamp();
      ordinal := nextval('leasehold.reader') - r.reader_base;
      if ordinal is null or ordinal >= 100000 then
        -- Upgrading the shared lock would deadlock two readers.
        raise exception 'a concurrent operation changed the readers of this name; try again' using errcode = 'LH002';
      end if;
      insert into leasehold.entry as e (id, namespace, name, mode, units, capacity, holder, note, metadata, ttl_us, expires_at,
        asked_at, renewed_at, acquired_at, fence, floor, session, channel)
      values (q.id, c.namespace, q.name, q.mode, q.units, q.capacity, q.holder, q.note, q.metadata, q.ttl_us,
        leasehold._expiry(t, q.attached, c.session, q.ttl_us), t, t, t, r.last_fence + ordinal, q.floor,
        case when q.attached then c.session end, c.channel)
      on conflict (id, namespace, name) do update set expires_at = greatest(e.expires_at, excluded.expires_at)
      returning e.fence, leasehold._micros(e.acquired_at) into a.fence, a.acquired_us;
      a.verdict := 'g';
      if c.watched and a.fence = r.last_fence + ordinal then
        perform leasehold._event(c.namespace, t, q.name, q.holder, q.mode, q.units, q.capacity,
          jsonb_build_object('event', 'acquired', 'fence', a.fence));
      end if;
      return;
    end if;
  end if;
  a := leasehold._operate(c, q);
end $$;

-- Fast path of State::acquire for a request that must wait and is not bound to a session, at half the cost of _operate().
-- Preconditions: all units are held, nobody has expired, and nobody watches. Returns null if one fails.
create function leasehold._join_queue(
  p_namespace text, p_channel text, p_name text, p_id uuid, p_mode "char", p_units int, p_capacity int, p_ttl_us bigint,
  p_max_ahead int, p_holder text, p_note text, p_metadata jsonb, p_floor bigint, out a leasehold.answer
)
language plpgsql volatile as $$
declare
  t timestamptz := clock_timestamp();
  expiry timestamptz := t + p_ttl_us * interval '1 microsecond';
  first_end timestamptz;
  same_shape boolean;
begin
  -- Sets last_fence: the row is no longer plain, so the fast paths of acquire_lock() and release_lock() skip it.
  update leasehold.resource x set waiting = x.waiting + 1, has_entries = true, last_fence = greatest(x.last_fence, x.fence),
    next_end = least(x.next_end, expiry)
  where x.namespace = p_namespace and x.name = p_name and x.reader_base is null and x.next_end > t
    and x.used + case when x.id is null then 0 else x.units end >= p_capacity
    and (x.id is null or x.id <> p_id and x.session is null)
    and (p_max_ahead is null or x.waiting <= p_max_ahead)
  returning x.waiting - 1, x.last_fence, least(x.next_end, case when x.id is not null then x.expires_at end),
    case when x.id is not null then x.capacity = p_capacity and leasehold._family(x.mode) = leasehold._family(p_mode) end
  into a.ahead, a.fence, first_end, same_shape;
  if not found then
    return;
  end if;
  if same_shape is null then
    select x.capacity = p_capacity and leasehold._family(x.mode) = leasehold._family(p_mode) into same_shape
    from leasehold.entry x where x.namespace = p_namespace and x.name = p_name order by x.seq limit 1;
  end if;
  -- Read the clock now: the row may have been waited for.
  t := clock_timestamp();
  if same_shape and first_end > t then
    insert into leasehold.entry (id, namespace, name, mode, units, capacity, holder, note, metadata, ttl_us, expires_at,
      asked_at, renewed_at, floor, channel)
    values (p_id, p_namespace, p_name, p_mode, p_units, p_capacity, p_holder, p_note, p_metadata, p_ttl_us, expiry, t, t,
      p_floor, p_channel)
    on conflict do nothing;
    if found then
      a.verdict := 'q';
      a.granted := 0;
      -- If a lease ahead were bound to a session, next_end would have been -infinity.
      a.behind_session := false;
      -- An underestimate: leases ahead may be renewed.
      a.ask_again_us := greatest(1000, leasehold._micros(first_end) - leasehold._micros(t));
      return;
    end if;
  end if;
  -- Another shape, a lease that has ended, or a repeated request, which has an entry.
  update leasehold.resource x set waiting = x.waiting - 1 where x.namespace = p_namespace and x.name = p_name;
  a := null;
end $$;

-- Whether settling would change nothing: nobody has expired or died.
create function leasehold._settled(r leasehold.resource, t timestamptz) returns boolean
language plpgsql volatile as $$
begin
  return (r.id is null or (r.expires_at > t and not leasehold._session_dead(r.session)))
     and (r.waiting = 0 or r.id is not null or r.used > 0)
     and not exists (select from leasehold.entry e where e.namespace = r.namespace and e.name = r.name
           and (e.expires_at <= t or leasehold._session_dead(e.session)));
end $$;

-- Whether the name is in use as what is asked for.
create function leasehold._same_shape(r leasehold.resource, q leasehold.operation) returns boolean
language plpgsql stable as $$
begin
  return (select coalesce(s.capacity = q.capacity and leasehold._family(s.mode) = leasehold._family(q.mode), true)
  from (select 1) one left join lateral (
    select r.mode, r.capacity where r.id is not null
    union all
    (select e.mode, e.capacity from leasehold.entry e where e.namespace = r.namespace and e.name = r.name order by e.seq limit 1)
    limit 1) s on true);
end $$;

-- State::release. An inline holder is ended by one update if nobody waits, or if it is the only holder and the next one takes
-- all units; otherwise continues in _release_contended.
create function leasehold._release(
  p_namespace text, p_channel text, p_history "char", p_watched boolean,
  p_name text, p_id uuid, p_ending text, p_problem text, p_details text, out a leasehold.answer
)
language plpgsql volatile as $$
declare
  t timestamptz := clock_timestamp();
  r leasehold.resource;
  expired boolean := false;
begin
  update leasehold.resource x set id = null, freed_at = greatest(t, x.acquired_at)
  where x.namespace = p_namespace and x.name = p_name and x.id = p_id and x.expires_at > t
    and (x.waiting = 0 or x.used = 0 and x.next_end > t and not p_watched)
  returning * into r;
  if found then
    a.verdict := 'f';
    -- It may have waited for another's transaction, and ended meanwhile.
    if clock_timestamp() > t + interval '10 ms' then
      t := clock_timestamp();
      expired := r.expires_at <= t;
      a.verdict := case when expired then 'n' else 'f' end;
      update leasehold.resource x set freed_at = greatest(t, x.acquired_at) where x.namespace = p_namespace and x.name = p_name
      returning x.freed_at into r.freed_at;
    end if;
    if r.waiting > 0 then
      a := leasehold._hand_over(r, t, p_id, p_channel);
    end if;
  end if;
  if a.verdict is null then
    a := leasehold._release_contended(row(p_namespace, p_channel, null, p_history, p_watched),
      row('r', p_name, p_id, null, null, null, null, null, null, null, null, null, null, p_ending, p_problem,
        p_details)::leasehold.operation);
    return;
  end if;
  if p_history = 'a' and not p_watched and not expired then
    insert into leasehold.ended values (p_id, r.namespace, r.name, r.mode, r.units, r.capacity, r.holder, r.note, r.metadata,
      r.fence, coalesce(r.asked_at, r.acquired_at), r.acquired_at, r.freed_at, p_ending, p_problem, p_details);
  elsif p_history <> 'o' or p_watched then
    r.id := p_id;
    perform leasehold._ended(row(p_namespace, p_channel, null, p_history, p_watched), leasehold._inline_entry(r),
      case when expired then r.expires_at else r.freed_at end, case when expired then 'expired' else p_ending end, p_problem, p_details);
  end if;
end $$;

-- Makes the first waiter the inline holder, at a third of the cost of _operate(). `r` is the row after its only holder,
-- `p_ended`, was removed at the time t. Preconditions: the waiter takes all units, and nobody has expired. Otherwise returns
-- null, with that holder back in the row: call _operate() then.
create function leasehold._hand_over(r leasehold.resource, t timestamptz, p_ended uuid, p_channel text, out a leasehold.answer)
language plpgsql volatile as $$
declare
  w leasehold.entry;
begin
  if r.reader_base is null and r.session is null and least(r.next_end, r.expires_at) > t
    -- Leases of acquire_lock() share their id.
    and p_ended <> leasehold._sql_id() and leasehold._may_grant(r.namespace, r.name) then
    delete from leasehold.entry x
    where x.ctid = (select y.ctid from leasehold.entry y where y.namespace = r.namespace and y.name = r.name order by y.seq limit 1)
      and x.units = x.capacity
    returning * into w;
  end if;
  if w.id is null then
    update leasehold.resource x set id = p_ended where x.namespace = r.namespace and x.name = r.name;
    return;
  end if;
  w.fence := leasehold._next_fence(greatest(r.last_fence, r.fence), leasehold._micros(t), w.floor);
  update leasehold.resource x set waiting = x.waiting - 1, has_entries = x.waiting > 1, last_fence = 0,
    next_end = case when x.waiting > 1 then x.next_end else 'infinity' end, id = w.id, fence = w.fence, mode = w.mode,
    units = w.units, capacity = w.capacity, holder = w.holder, note = w.note, metadata = w.metadata, ttl_us = w.ttl_us,
    expires_at = w.expires_at, asked_at = w.asked_at, renewed_at = w.renewed_at, acquired_at = x.freed_at, session = null,
    channel = w.channel
  where x.namespace = r.namespace and x.name = r.name;
  a.verdict := 'f';
  a.granted := 1;
  if w.channel = p_channel then
    a.hints := array['g ' || w.id || ' ' || w.fence];
  elsif w.channel <> 'sql' then
    perform pg_notify(w.channel, 'g ' || w.id || ' ' || w.fence);
  end if;
end $$;

-- State::release for all else: a reader among readers removes its own row, all others go to _operate.
create function leasehold._release_contended(c leasehold.caller, q leasehold.operation, out a leasehold.answer)
language plpgsql volatile as $$
declare
  e leasehold.entry;
  unseen boolean;
begin
  -- Do not lock a row held by others: the caller's transaction may stay open.
  select x.reader_base is not null into unseen from leasehold.resource x
  where x.namespace = c.namespace and x.name = q.name and (x.has_entries or x.id is null or x.id = q.id);
  if not found then
    a.verdict := 'n';
    return;
  end if;
  if unseen and exists (select from leasehold.entry x where x.id = q.id and x.namespace = c.namespace and x.name = q.name
      and x.fence is not null and x.expires_at > clock_timestamp()) then
    perform pg_advisory_xact_lock_shared(leasehold._reader_lock(c.namespace, q.name));
    select x.reader_base is not null into unseen from leasehold.resource x where x.namespace = c.namespace and x.name = q.name;
    if unseen then
      delete from leasehold.entry x
      where x.id = q.id and x.namespace = c.namespace and x.name = q.name and x.fence is not null
        and x.expires_at > clock_timestamp()
      returning * into e;
    end if;
    if e.id is null then
      raise exception 'a concurrent operation changed the readers of this name; try again' using errcode = 'LH002';
    end if;
    perform leasehold._ended(c, e, clock_timestamp(), q.ending, q.problem, q.details);
    a.verdict := 'f';
    return;
  end if;
  a := leasehold._operate(c, q);
end $$;

-- Inline holders with no entries beside them: a try that one of them blocks reads this one row and writes nothing.
create view leasehold._inline_holder as
  select r.namespace, r.name, r.id, r.mode, r.units, r.capacity, r.holder, r.note, r.fence, r.acquired_at
  from leasehold.resource r
  where r.id is not null and not r.has_entries and r.expires_at > clock_timestamp() and not leasehold._session_dead(r.session);

-- Requests one lease.
create function leasehold.acquire_one(
  p_namespace text, p_channel text, p_session int, p_history "char",
  p_name text, p_id uuid, p_mode "char", p_units int, p_capacity int, p_ttl_us bigint, p_max_ahead int, p_attached boolean,
  p_holder text, p_note text, p_metadata jsonb, p_floor bigint, out a leasehold.answer
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms'
set seq_page_cost = 100 as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then perform leasehold._check_isolation(); end if;
  if p_max_ahead < 0 then
    select 'b', h.fence, h.mode, h.holder, h.note, leasehold._micros(clock_timestamp()) - leasehold._micros(h.acquired_at)
    into a.verdict, a.fence, a.mode, a.holder, a.note, a.held_us
    from leasehold._inline_holder h
    where h.namespace = p_namespace and h.name = p_name and h.id <> p_id and h.units::bigint + p_units > p_capacity
      and h.capacity = p_capacity and leasehold._family(h.mode) = leasehold._family(p_mode);
    if found then
      return;
    end if;
  end if;
  a := leasehold._acquire(p_namespace, p_channel, p_session, p_history, leasehold._watched(p_namespace), p_name, p_id,
    p_mode, p_units, p_capacity, p_ttl_us, p_max_ahead, p_attached, p_holder, p_note, p_metadata, p_floor);
  if a.verdict = 'q' and a.granted = 0 then
    -- A queue position lost in a crash is requested again.
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

-- Ends one lease or leaves its queue.
-- A release that grants nothing may commit asynchronously: losing it costs the next holder one ttl and nothing else.
create function leasehold.release_one(
  p_namespace text, p_channel text, p_history "char", p_name text, p_id uuid, p_ending text, p_problem text, p_details text,
  out a leasehold.answer
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms'
set seq_page_cost = 100 as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then perform leasehold._check_isolation(); end if;
  a := leasehold._release(p_namespace, p_channel, p_history, leasehold._watched(p_namespace), p_name, p_id, p_ending,
    p_problem, p_details);
  if coalesce(a.granted, 0) = 0 then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

-- Requests many leases at once: one answer for each element, `at` being its index in the arrays. The caller has sorted them
-- by name, as bytes. If all names are free, one statement takes them, which costs less than one by one. It takes the rows that
-- were looked up, in their order, by a nested loop: their names are compared in a way that no index helps with. What changed
-- since the look undoes it (LH002), since to go on one by one would lock rows out of order.
create function leasehold.acquire_many(
  p_namespace text, p_channel text, p_session int, p_history "char",
  p_names text[], p_ids uuid[], p_modes "char"[], p_units int[], p_capacities int[], p_ttls_us bigint[], p_max_ahead int[],
  p_attached boolean[], p_holders text[], p_notes text[], p_metadata jsonb[], p_floors bigint[]
) returns setof leasehold.answer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms'
set seq_page_cost = 100 set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan as $$
declare
  watched boolean;
  async_commit_ok boolean := true;
  tids tid[];
  in_time boolean;
  remaining int := cardinality(p_names);
  looked text;
  its_id uuid;
  its_units int;
  its_capacity int;
  busy leasehold.answer;
  a leasehold.answer;
begin
  if current_setting('transaction_isolation') <> 'read committed' then perform leasehold._check_isolation(); end if;
  if leasehold._several_names(p_names) and not leasehold._watched(p_namespace) then
    select array_agg(y.tid) into tids
    from unnest(p_names) with ordinality as w(name, at) cross join lateral (
      select z.ctid as tid from leasehold.resource z
      where z.namespace = p_namespace and z.name = w.name and z.id is null and not z.has_entries
        and z.freed_at < transaction_timestamp() and w.name is distinct from p_names[w.at - 1]
        and leasehold._not_guarded(p_namespace, w.name) offset 0) y;
    if cardinality(tids) = remaining then
      a.verdict := 'g';
      for a.at, a.fence, a.acquired_us, in_time in
        update leasehold.resource x set id = w.id, mode = w.mode, units = w.units, capacity = w.capacity, holder = w.holder,
          note = w.note, metadata = w.metadata, ttl_us = w.ttl_us, asked_at = w.t, renewed_at = w.t,
          expires_at = leasehold._expiry(w.t, w.attached, p_session, w.ttl_us), acquired_at = greatest(w.t, x.freed_at),
          session = case when w.attached then p_session end, channel = p_channel, last_fence = 0,
          fence = leasehold._next_fence(greatest(x.last_fence, x.fence), leasehold._micros(w.t), w.floor)
        from (select *, clock_timestamp() as t
          from unnest(tids, p_names, p_ids, p_modes, p_units, p_capacities, p_ttls_us, p_attached, p_holders, p_notes, p_metadata,
            p_floors) with ordinality as u(tid, name, id, mode, units, capacity, ttl_us, attached, holder, note, metadata, floor, at)
          offset 0) w
        where x.ctid = w.tid and (x.namespace, x.name) is not distinct from (p_namespace, w.name) and x.id is null
          and not x.has_entries and x.freed_at < transaction_timestamp() and leasehold._not_guarded(p_namespace, w.name)
        returning w.at, x.fence, leasehold._micros(x.acquired_at), clock_timestamp() between w.t and w.t + interval '10 ms'
      loop
        remaining := remaining - in_time::int;
        return next a;
      end loop;
      if remaining > 0 then
        raise exception 'a concurrent operation changed one of the names; try again' using errcode = 'LH002';
      end if;
      return;
    end if;
  end if;
  for i in 1..cardinality(p_names) loop
    if p_max_ahead[i] < 0 then
      -- Tries for one name share one lookup.
      if looked is distinct from p_names[i] then
        select h.name, h.id, h.units, h.capacity, 'b', h.fence, h.mode, h.holder, h.note,
          leasehold._micros(clock_timestamp()) - leasehold._micros(h.acquired_at)
        into looked, its_id, its_units, its_capacity, busy.verdict, busy.fence, busy.mode, busy.holder, busy.note, busy.held_us
        from leasehold._inline_holder h where h.namespace = p_namespace and h.name = p_names[i];
      end if;
      if its_id <> p_ids[i] and its_units::bigint + p_units[i] > p_capacities[i] and its_capacity = p_capacities[i]
        and leasehold._family(busy.mode) = leasehold._family(p_modes[i]) then
        busy.at := i;
        return next busy;
        continue;
      end if;
    end if;
    watched := coalesce(watched, leasehold._watched(p_namespace));
    -- Several elements for one name: lock the row first, to keep the lock order.
    if p_modes[i] = 's' and p_names[i] in (p_names[i - 1], p_names[i + 1]) then
      insert into leasehold.resource (namespace, name) values (p_namespace, p_names[i]) on conflict do nothing;
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = p_names[i] for no key update;
      perform pg_advisory_xact_lock(leasehold._reader_lock(p_namespace, p_names[i]));
    end if;
    a := leasehold._acquire(p_namespace, p_channel, p_session, p_history, watched, p_names[i], p_ids[i], p_modes[i],
      p_units[i], p_capacities[i], p_ttls_us[i], p_max_ahead[i], p_attached[i], p_holders[i], p_notes[i], p_metadata[i], p_floors[i]);
    looked := null;
    a.at := i;
    async_commit_ok := async_commit_ok and a.verdict = 'q' and a.granted = 0;
    return next a;
  end loop;
  if async_commit_ok then perform set_config('synchronous_commit', 'off', true); end if;
end $$;

-- Whether one statement for all elements, sorted by name, is worth its start.
create function leasehold._several_names(p_names text[]) returns boolean
language sql immutable as $$ select cardinality(p_names) > 3 and p_names[1] <> p_names[cardinality(p_names)] $$;

-- Ends many leases or leaves their queues; sorted and answered as in acquire_many. One statement ends them if nobody waits.
create function leasehold.release_many(
  p_namespace text, p_channel text, p_history "char",
  p_names text[], p_ids uuid[], p_endings text[], p_problems text[], p_details text[]
) returns setof leasehold.answer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms'
set seq_page_cost = 100 set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan as $$
declare
  watched boolean := leasehold._watched(p_namespace);
  async_commit_ok boolean := true;
  tids tid[];
  in_time boolean;
  remaining int := cardinality(p_names);
  a leasehold.answer;
begin
  if current_setting('transaction_isolation') <> 'read committed' then perform leasehold._check_isolation(); end if;
  if leasehold._several_names(p_names) and not watched and (p_history <> 'p' or p_endings <@ '{released,cancelled}') then
    select array_agg(y.tid) into tids
    from unnest(p_names, p_ids) as w(name, id) cross join lateral (
      select z.ctid as tid from leasehold.resource z
      where z.namespace = p_namespace and z.name = w.name and z.id = w.id and z.waiting = 0
        and z.expires_at > clock_timestamp() offset 0) y;
    if cardinality(tids) = remaining then
      a.verdict := 'f';
      for a.at, in_time in
        with x as (
          update leasehold.resource x set id = null, freed_at = greatest(w.t, x.acquired_at)
          from (select *, clock_timestamp() as t
            from unnest(tids, p_names, p_ids, p_endings, p_problems, p_details) with ordinality
              as u(tid, name, id, ending, problem, details, at) offset 0) w
          where x.ctid = w.tid and (x.namespace, x.name) is not distinct from (p_namespace, w.name) and x.id = w.id and x.waiting = 0
            and x.expires_at > w.t
          returning x.*, w.id as lease_id, w.ending, w.problem, w.details, w.at,
            clock_timestamp() between w.t and w.t + interval '10 ms' as in_time
        ), recorded as (
          insert into leasehold.ended
          select x.lease_id, x.namespace, x.name, x.mode, x.units, x.capacity, x.holder, x.note, x.metadata, x.fence,
            coalesce(x.asked_at, x.acquired_at), x.acquired_at, x.freed_at, x.ending, x.problem, x.details
          from x where p_history = 'a'
        )
        select x.at, x.in_time from x
      loop
        remaining := remaining - in_time::int;
        return next a;
      end loop;
      if remaining = 0 then
        perform set_config('synchronous_commit', 'off', true);
        return;
      end if;
      raise exception 'a concurrent operation changed one of the names; try again' using errcode = 'LH002';
    end if;
  end if;
  for i in 1..cardinality(p_names) loop
    -- Several elements for one name: lock the row first, to keep the lock order.
    if p_names[i] in (p_names[i - 1], p_names[i + 1]) then
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = p_names[i] for no key update;
      perform pg_advisory_xact_lock(leasehold._reader_lock(p_namespace, p_names[i]));
    end if;
    a := leasehold._release(p_namespace, p_channel, p_history, watched, p_names[i], p_ids[i], p_endings[i], p_problems[i],
      p_details[i]);
    a.at := i;
    async_commit_ok := async_commit_ok and coalesce(a.granted, 0) = 0;
    return next a;
  end loop;
  if async_commit_ok then perform set_config('synchronous_commit', 'off', true); end if;
end $$;

-- State::renew for leases that hold and change nothing else: end = now + ttl, never earlier.
-- A session-bound lease needs no new expiry: it holds while its session lives and is not in p_abandoned, otherwise its fence
-- is null. Waits for no lock. Elements that are locked, wait, or are gone are omitted: they go to renew_each.
-- However many names there are, each is looked up by its key.
create function leasehold.renew_many(
  p_namespace text, p_channel text, p_abandoned int[], p_names text[], p_ids uuid[], p_ttls_us bigint[]
) returns table (at int, fence bigint, acquired_us bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  moved int;
  remaining int := cardinality(p_names);
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
  remaining := remaining - moved;
  if remaining = 0 then
    return;
  end if;
  -- Next, holders stored in `entry`, and provisional grants, which other instances made to this one: Entry::prolong.
  return query
    with mine as materialized (
      select x.tid, w.ttl_us, w.at::int as at
      from unnest(p_names, p_ids, p_ttls_us) with ordinality as w(name, id, ttl_us, at) cross join lateral (
        select y.ctid as tid from leasehold.entry y
        where y.id = w.id and y.namespace = p_namespace and y.name = w.name and y.fence is not null and y.expires_at > clock_timestamp()
          and (y.session is null or y.provisional and y.channel = p_channel and y.session <> all (p_abandoned))
        for no key update skip locked) x
    ), prolonged as (
      update leasehold.entry x set renewed_at = clock_timestamp(), provisional = false,
        expires_at = case when x.session is null then greatest(x.expires_at, m.until) else 'infinity' end,
        ttl_us = case when x.session is null and m.until > x.expires_at then m.ttl_us else x.ttl_us end
      from (select *, clock_timestamp() + ttl_us * interval '1 microsecond' as until from mine) m where x.ctid = m.tid
      returning m.at, x.fence, leasehold._micros(x.acquired_at), x.session
    )
    select p.at, p.fence, p._micros from prolonged p where p.session is null;
  get diagnostics moved = row_count;
  if moved = remaining then
    return;
  end if;
  if moved = 0 and remaining = cardinality(p_names) then
    -- Nothing was renewed that outlives a crash: sessions do not.
    perform set_config('synchronous_commit', 'off', true);
  end if;
  return query
    select w.at::int, case when y.session <> all (p_abandoned) and not leasehold._session_dead(y.session) then y.fence end,
      leasehold._micros(y.acquired_at)
    from unnest(p_names, p_ids) with ordinality as w(name, id, at) cross join lateral (
      select x.session, x.fence, x.acquired_at from leasehold.resource x
      where x.namespace = p_namespace and x.name = w.name and x.id = w.id and x.session is not null
      union all
      select x.session, x.fence, x.acquired_at from leasehold.entry x
      where x.id = w.id and x.namespace = p_namespace and x.name = w.name and x.session is not null and x.fence is not null
        and not x.provisional) y;
end $$;

-- State::renew for any element: one by one. Waits for rows that others have locked, or leaves their leases out of the answer.
create function leasehold.renew_each(
  p_namespace text, p_channel text, p_session int, p_abandoned int[], p_history "char",
  p_names text[], p_ids uuid[], p_ttls_us bigint[], p_floors bigint[], p_modes "char"[], p_units int[], p_capacities int[],
  p_metadata jsonb[], p_detach boolean[] default null, p_waits boolean default true
) returns setof leasehold.answer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms'
set seq_page_cost = 100 as $$
declare
  c leasehold.caller;
  u record;
  a leasehold.answer;
begin
  perform leasehold._check_isolation();
  c := row(p_namespace, p_channel, p_session, p_history, leasehold._watched(p_namespace));
  for u in
    select *, count(*) over (partition by x.name) > 1 as several
    from unnest(p_names, p_ids, p_ttls_us, p_floors, p_modes, p_units, p_capacities, p_metadata, p_detach) with ordinality
      as x(name, id, ttl_us, floor, mode, units, capacity, metadata, detach, at) order by x.name collate "C", x.at
  loop
    if not p_waits then
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = u.name for no key update skip locked;
      continue when not found
        and exists (select from leasehold.resource x where x.namespace = p_namespace and x.name = u.name);
    end if;
    -- Several elements for one name: lock the row first, to keep the lock order.
    if u.several then
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = u.name for no key update;
      perform pg_advisory_xact_lock(leasehold._reader_lock(p_namespace, u.name));
    end if;
    a := null;
    if p_abandoned <> '{}' and exists (select from leasehold.entry x where x.id = u.id and x.namespace = p_namespace
        and x.name = u.name and x.fence is null and x.session = any (p_abandoned)) then
      -- Moves the position to the current session; without one, omits the answer: a grant to the abandoned session must
      -- not be believed.
      continue when p_session is null;
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = u.name for no key update;
      perform pg_advisory_xact_lock(leasehold._reader_lock(p_namespace, u.name));
      update leasehold.entry x set session = p_session
      where x.id = u.id and x.namespace = p_namespace and x.name = u.name and x.fence is null and x.session = any (p_abandoned);
    end if;
    -- A lease bound to an abandoned session is lost to the caller, though others still see it.
    if p_abandoned <> '{}' and exists (select from leasehold._lease x where x.namespace = p_namespace and x.name = u.name
        and x.id = u.id and x.fence is not null and x.session = any (p_abandoned)) then
      a.verdict := 'n';
    else
      a := leasehold._operate(c, row('n', u.name, u.id, u.mode, u.units, u.capacity, u.ttl_us, null, not u.detach, null, null,
        u.metadata, u.floor, null, null, null)::leasehold.operation);
    end if;
    a.at := u.at;
    return next a;
  end loop;
end $$;

-- Settles names with a lease whose connection died, or that was not confirmed in time: no notification tells of either.
-- Returns for each whether it still waits, and the hints for the caller's instance; omits a name that is locked.
create function leasehold.settle_dead(p_namespace text, p_channel text, p_history "char", p_names text[], p_ids uuid[])
returns table (at int, waits boolean, hints text[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms'
set seq_page_cost = 100 as $$
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
    if u.first and exists (select from leasehold._lease l where l.namespace = p_namespace and l.name = u.name
        and (leasehold._session_dead(l.session) or l.provisional and l.expires_at <= clock_timestamp())) then
      -- A locked row is left to the next call, so that it does not delay the others.
      perform 1 from leasehold.resource r where r.namespace = p_namespace and r.name = u.name for no key update skip locked;
      continue when not found;
      hints := (leasehold._operate(c, row('s', u.name, null, null, null, null, null, null, null, null, null, null, null,
        null, null, null)::leasehold.operation)).hints;
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
    row('e', p_name, null, null, null, null, null, null, null, null, null, null, p_fence, null, null, p_reason)::leasehold.operation);
end $$;
