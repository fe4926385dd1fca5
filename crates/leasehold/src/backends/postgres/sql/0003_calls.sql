-- What the library calls: operations in arrays, so that concurrent calls share
-- a round trip and a commit. Elements are taken in the order of their names (by
-- their bytes), so that two calls never wait for each other in a circle.

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

-- State::acquire. A free name is taken by one update of its row; what is not that goes on.
-- Flat parameters: a composite for each call would cost as much as the update.
create function leasehold._acquire(
  p_namespace text, p_channel text, p_session int, p_own int, p_history "char", p_watched boolean,
  p_name text, p_id uuid, p_mode "char", p_units int, p_capacity int, p_ttl_us bigint, p_try boolean, p_attached boolean,
  p_holder text, p_note text, p_metadata jsonb, p_floor bigint, out a leasehold.answer
)
language plpgsql volatile as $$
declare
  t timestamptz := clock_timestamp();
  wall bigint := leasehold._micros(t);
begin
  -- A row that does not match is not locked; FOR UPDATE does not pass guard().
  update leasehold.resource x set id = p_id, mode = p_mode, units = p_units, capacity = p_capacity, holder = p_holder,
    note = p_note, metadata = p_metadata, ttl_us = p_ttl_us, expires_at = leasehold._end(t, p_attached, p_session, p_ttl_us),
    asked_at = t, renewed_at = t, acquired_at = t, session = case when p_attached then p_session end, channel = p_channel,
    last_fence = leasehold._next_fence(x.last_fence, wall, p_floor), fence = leasehold._next_fence(x.last_fence, wall, p_floor)
  where x.ctid = (select y.ctid from leasehold.resource y
    where y.namespace = p_namespace and y.name = p_name and y.id is null and not y.crowd for update skip locked)
  returning x.last_fence into a.fence;
  if not found then
    a := leasehold._contend(row(p_namespace, p_channel, p_session, p_own, p_history, p_watched),
      row('a', p_name, p_id, p_mode, p_units, p_capacity, p_ttl_us, p_try, p_attached, p_holder, p_note, p_metadata, p_floor,
        null, null, null)::leasehold.ask);
    return;
  end if;
  a.verdict := 'g';
  a.acquired_us := wall;
  if p_watched then
    perform leasehold._event(p_namespace, t, p_name, p_holder, p_mode, p_units, p_capacity,
      jsonb_build_object('event', 'acquired', 'fence', a.fence));
  end if;
end $$;

-- State::acquire for a name that was not free: a new one is made, a try that must fail in a crowd only reads, a reader
-- among readers adds its own row, all others queue up.
create function leasehold._contend(c leasehold.caller, q leasehold.ask, out a leasehold.answer)
language plpgsql volatile as $$
declare
  t timestamptz := clock_timestamp();
  wall bigint := leasehold._micros(t);
  ends timestamptz := leasehold._end(t, q.attached, c.session, q.ttl_us);
  r leasehold.resource;
  ordinal bigint;
begin
  select * into r from leasehold.resource x where x.namespace = c.namespace and x.name = q.name;
  if not found then
    insert into leasehold.resource (namespace, name, last_fence, fence, id, mode, units, capacity, holder, note, metadata, ttl_us,
      expires_at, asked_at, renewed_at, acquired_at, session, channel)
    values (c.namespace, q.name, leasehold._next_fence(0, wall, q.floor), leasehold._next_fence(0, wall, q.floor), q.id, q.mode, q.units, q.capacity, q.holder,
      q.note, q.metadata, q.ttl_us, ends, t, t, t, case when q.attached then c.session end, c.channel)
    on conflict do nothing returning last_fence into a.fence;
  elsif r.id is distinct from q.id then
    if q.try and r.crowd and r.reader_base is null and leasehold._settled(r, t, c.own_session)
      and (r.waiting > 0 or r.used + q.units + (case when r.id is null then 0 else r.units end) > q.capacity)
      and not exists (select from leasehold.entry e where e.id = q.id and e.namespace = c.namespace and e.name = q.name)
      and leasehold._same_shape(r, q) then
      a.verdict := 'b';
      a.waiting := r.waiting;
      a.holders := leasehold._holders(c.namespace, q.name, t);
      return;
    end if;
    -- One that is known may have expired or died: the rule decides.
    if q.mode = 's' and q.floor is null and r.reader_base is not null and wall - r.last_fence < 100000
      and (select s.last_value from leasehold.reader s) - r.reader_base < 90000
      and not exists (select from leasehold.entry e where e.id = q.id and e.namespace = c.namespace and e.name = q.name) then
      perform pg_advisory_xact_lock_shared(leasehold._gate(c.namespace, q.name));
      select * into r from leasehold.resource x where x.namespace = c.namespace and x.name = q.name;
      ordinal := nextval('leasehold.reader') - r.reader_base;
      if ordinal is null or ordinal >= 100000 then
        -- The gate cannot be taken alone from here: another reader may want the same.
        raise exception 'the readers of this name were overtaken' using errcode = 'LH002';
      end if;
      insert into leasehold.entry as e (id, namespace, name, mode, units, capacity, holder, note, metadata, ttl_us, expires_at,
        asked_at, renewed_at, acquired_at, fence, floor, session, channel)
      values (q.id, c.namespace, q.name, q.mode, q.units, q.capacity, q.holder, q.note, q.metadata, q.ttl_us, ends,
        t, t, t, r.last_fence + ordinal, q.floor, case when q.attached then c.session end, c.channel)
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
  if a.fence is null then
    a := leasehold._operate(c, q);
    return;
  end if;
  a.verdict := 'g';
  a.acquired_us := wall;
  if c.watched then
    perform leasehold._event(c.namespace, t, q.name, q.holder, q.mode, q.units, q.capacity,
      jsonb_build_object('event', 'acquired', 'fence', a.fence));
  end if;
end $$;

-- Whether settling would change nothing: nobody has expired or died.
create function leasehold._settled(r leasehold.resource, t timestamptz, p_own int) returns boolean
language plpgsql volatile as $$
begin
  return (r.id is null or (r.expires_at > t and not leasehold._dead(r.session, p_own)))
     and (r.waiting = 0 or r.id is not null or r.used > 0)
     and not exists (select from leasehold.entry e where e.namespace = r.namespace and e.name = r.name
           and (e.expires_at <= t or leasehold._dead(e.session, p_own)));
end $$;

-- Whether the name is in use as what is asked for.
create function leasehold._same_shape(r leasehold.resource, q leasehold.ask) returns boolean
language plpgsql stable as $$
begin
  return (select coalesce(s.capacity = q.capacity and leasehold._family(s.mode) = leasehold._family(q.mode), true)
  from (select 1) one left join lateral (
    select r.mode, r.capacity where r.id is not null
    union all
    (select e.mode, e.capacity from leasehold.entry e where e.namespace = r.namespace and e.name = r.name order by e.seq limit 1)
    limit 1) s on true);
end $$;

-- State::release. A lone holder with nobody waiting is one update, all else goes by the rule.
create function leasehold._release(
  p_namespace text, p_channel text, p_own int, p_history "char", p_watched boolean,
  p_name text, p_id uuid, p_ending text, p_problem text, p_details text, out a leasehold.answer
)
language plpgsql volatile as $$
declare
  t timestamptz := clock_timestamp();
  r leasehold.resource;
begin
  update leasehold.resource x set id = null, renewed_at = t
  where x.namespace = p_namespace and x.name = p_name and x.id = p_id and x.waiting = 0 and x.expires_at > t
  returning * into r;
  if not found then
    a := leasehold._give_back(row(p_namespace, p_channel, null, p_own, p_history, p_watched),
      row('r', p_name, p_id, null, null, null, null, null, null, null, null, null, null, p_ending, p_problem,
        p_details)::leasehold.ask);
    return;
  end if;
  a.verdict := 'f';
  if p_history = 'a' and not p_watched then
    insert into leasehold.ended values (p_id, r.namespace, r.name, r.mode, r.units, r.capacity, r.holder, r.note, r.metadata,
      r.fence, r.asked_at, r.acquired_at, t, p_ending, p_problem, p_details, r.session);
  elsif p_history <> 'o' or p_watched then
    r.id := p_id;
    perform leasehold._ended(row(p_namespace, p_channel, null, p_own, p_history, p_watched), leasehold._lone(r), t, p_ending,
      p_problem, p_details);
  end if;
end $$;

-- State::release for what is not alone: a reader among readers removes its own row, all others go by the rule.
create function leasehold._give_back(c leasehold.caller, q leasehold.ask, out a leasehold.answer)
language plpgsql volatile as $$
declare
  t timestamptz := clock_timestamp();
  e leasehold.entry;
  unseen boolean;
begin
  select x.reader_base is not null into unseen from leasehold.resource x where x.namespace = c.namespace and x.name = q.name;
  if not found then
    a.verdict := 'n';
    return;
  end if;
  if unseen and exists (select from leasehold.entry x where x.id = q.id and x.namespace = c.namespace and x.name = q.name
      and x.fence is not null and x.expires_at > t) then
    perform pg_advisory_xact_lock_shared(leasehold._gate(c.namespace, q.name));
    select x.reader_base is not null into unseen from leasehold.resource x where x.namespace = c.namespace and x.name = q.name;
    if not unseen then
      raise exception 'the readers of this name were overtaken' using errcode = 'LH002';
    end if;
    delete from leasehold.entry x
    where x.id = q.id and x.namespace = c.namespace and x.name = q.name and x.fence is not null and x.expires_at > t
    returning * into e;
    if not found then
      raise exception 'the readers of this name were overtaken' using errcode = 'LH002';
    end if;
    perform leasehold._ended(c, e, t, q.ending, q.problem, q.details);
    a.verdict := 'f';
    return;
  end if;
  a := leasehold._operate(c, q);
end $$;

-- Who holds a name and is alone there: a try that it keeps from holding reads this one row and writes nothing.
create view leasehold._lone_holder as
  select r.namespace, r.name, r.id, r.mode, r.units, r.capacity, r.holder, r.note, r.fence, r.acquired_at
  from leasehold.resource r
  where r.id is not null and not r.crowd and r.expires_at > clock_timestamp() and not leasehold._dead(r.session, null);

-- Asks for one lease.
create function leasehold.acquire_one(
  p_namespace text, p_channel text, p_session int, p_history "char",
  p_name text, p_id uuid, p_mode "char", p_units int, p_capacity int, p_ttl_us bigint, p_try boolean, p_attached boolean,
  p_holder text, p_note text, p_metadata jsonb, p_floor bigint, out a leasehold.answer
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform leasehold._check_isolation();
  end if;
  if p_try then
    select 'b', h.fence, h.mode, h.holder, h.note, leasehold._micros(clock_timestamp()) - leasehold._micros(h.acquired_at)
    into a.verdict, a.fence, a.mode, a.holder, a.note, a.held_us
    from leasehold._lone_holder h
    where h.namespace = p_namespace and h.name = p_name and h.id <> p_id and h.units::bigint + p_units > p_capacity
      and h.capacity = p_capacity and leasehold._family(h.mode) = leasehold._family(p_mode);
    if found then
      return;
    end if;
  end if;
  a := leasehold._acquire(p_namespace, p_channel, p_session, null, p_history, leasehold._watched(p_namespace), p_name, p_id,
    p_mode, p_units, p_capacity, p_ttl_us, p_try, p_attached, p_holder, p_note, p_metadata, p_floor);
  if a.verdict = 'q' and a.granted = 0 then
    -- A place is not a promise: one that is lost in a crash is asked for again.
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

-- Ends one lease or leaves its queue.
-- One that hands to nobody may commit asynchronously: losing it costs the next holder one ttl and nothing else.
create function leasehold.release_one(
  p_namespace text, p_channel text, p_history "char", p_name text, p_id uuid, p_ending text, p_problem text, p_details text,
  out a leasehold.answer
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform leasehold._check_isolation();
  end if;
  a := leasehold._release(p_namespace, p_channel, null, p_history, leasehold._watched(p_namespace), p_name, p_id, p_ending,
    p_problem, p_details);
  if coalesce(a.granted, 0) = 0 then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

-- Asks for many leases at once: one answer for each element, `at` being its place in the arrays.
-- One by one, which costs less than statements for all of them. The caller has sorted them by name, as bytes.
create function leasehold.acquire_many(
  p_namespace text, p_channel text, p_session int, p_history "char",
  p_names text[], p_ids uuid[], p_modes "char"[], p_units int[], p_capacities int[], p_ttls_us bigint[], p_tries boolean[],
  p_attached boolean[], p_holders text[], p_notes text[], p_metadata jsonb[], p_floors bigint[]
) returns setof leasehold.answer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
declare
  watched boolean;
  lean boolean := true;
  looked text;
  its_id uuid;
  its_units int;
  its_capacity int;
  busy leasehold.answer;
  a leasehold.answer;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform leasehold._check_isolation();
  end if;
  for i in 1..cardinality(p_names) loop
    if p_tries[i] then
      -- Tries for one name share the look.
      if looked is distinct from p_names[i] then
        select h.name, h.id, h.units, h.capacity, 'b', h.fence, h.mode, h.holder, h.note,
          leasehold._micros(clock_timestamp()) - leasehold._micros(h.acquired_at)
        into looked, its_id, its_units, its_capacity, busy.verdict, busy.fence, busy.mode, busy.holder, busy.note, busy.held_us
        from leasehold._lone_holder h where h.namespace = p_namespace and h.name = p_names[i];
      end if;
      if its_id <> p_ids[i] and its_units::bigint + p_units[i] > p_capacities[i] and its_capacity = p_capacities[i]
        and leasehold._family(busy.mode) = leasehold._family(p_modes[i]) then
        busy.at := i;
        return next busy;
        continue;
      end if;
    end if;
    watched := coalesce(watched, leasehold._watched(p_namespace));
    -- Readers take only the gate; one that comes with others for its name takes the row before it, as all others do.
    if p_modes[i] = 's' and p_names[i] in (p_names[i - 1], p_names[i + 1]) then
      insert into leasehold.resource (namespace, name) values (p_namespace, p_names[i]) on conflict do nothing;
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = p_names[i] for no key update;
      perform pg_advisory_xact_lock(leasehold._gate(p_namespace, p_names[i]));
    end if;
    a := leasehold._acquire(p_namespace, p_channel, p_session, null, p_history, watched, p_names[i], p_ids[i], p_modes[i],
      p_units[i], p_capacities[i], p_ttls_us[i], p_tries[i], p_attached[i], p_holders[i], p_notes[i], p_metadata[i], p_floors[i]);
    a.at := i;
    lean := lean and a.verdict = 'q' and a.granted = 0;
    return next a;
  end loop;
  if lean then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

-- Ends many leases or leaves their queues; sorted and answered as in acquire_many.
create function leasehold.release_many(
  p_namespace text, p_channel text, p_history "char",
  p_names text[], p_ids uuid[], p_endings text[], p_problems text[], p_details text[]
) returns setof leasehold.answer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
declare
  watched boolean := leasehold._watched(p_namespace);
  lean boolean := true;
  a leasehold.answer;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform leasehold._check_isolation();
  end if;
  for i in 1..cardinality(p_names) loop
    -- Readers take only the gate; one that comes with others for its name takes the row before it, as all others do.
    if p_names[i] in (p_names[i - 1], p_names[i + 1]) then
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = p_names[i] for no key update;
      perform pg_advisory_xact_lock(leasehold._gate(p_namespace, p_names[i]));
    end if;
    a := leasehold._release(p_namespace, p_channel, null, p_history, watched, p_names[i], p_ids[i], p_endings[i], p_problems[i],
      p_details[i]);
    a.at := i;
    lean := lean and coalesce(a.granted, 0) = 0;
    return next a;
  end loop;
  if lean then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

-- State::renew for leases that hold and change nothing else: end = now + ttl, never earlier.
-- Waits for nobody.
-- Elements that are locked, wait, or are gone are not answered: renew_each tells.
-- However many names there are, each is looked up by its key.
create function leasehold.renew_many(p_namespace text, p_names text[], p_ids uuid[], p_ttls_us bigint[])
returns table (at int, fence bigint, acquired_us bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  moved int;
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
  if moved < cardinality(p_names) then
    -- What lives by a connection needs no new end.
    return query
      select w.at::int, y.fence, leasehold._micros(y.acquired_at)
      from unnest(p_names, p_ids) with ordinality as w(name, id, at)
      join leasehold.resource y on y.namespace = p_namespace and y.name = w.name and y.id = w.id
      where y.session is not null and y.expires_at = 'infinity' and not leasehold._dead(y.session, null);
  end if;
end $$;

-- State::renew for whatever it is: one by one, waiting for locks.
create function leasehold.renew_each(
  p_namespace text, p_channel text, p_history "char",
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
  c := row(p_namespace, p_channel, null, null, p_history, leasehold._watched(p_namespace));
  for u in
    select *, count(*) over (partition by x.name) > 1 as several from unnest(p_names, p_ids, p_ttls_us, p_floors, p_modes, p_units, p_capacities, p_metadata) with ordinality
      as x(name, id, ttl_us, floor, mode, units, capacity, metadata, at) order by x.name collate "C", x.at
  loop
    -- Whoever comes twice to a name takes its row and then the gate, as all others do.
    if u.several then
      perform 1 from leasehold.resource x where x.namespace = p_namespace and x.name = u.name for no key update;
      perform pg_advisory_xact_lock(leasehold._gate(p_namespace, u.name));
    end if;
    -- A holder among others that changes nothing but its end is not in anybody's way.
    a := null;
    if u.floor is null and u.mode is null and u.metadata is null then
      update leasehold.entry x set renewed_at = clock_timestamp(),
        ttl_us = case when clock_timestamp() + u.ttl_us * interval '1 microsecond' > x.expires_at then u.ttl_us else x.ttl_us end,
        expires_at = greatest(x.expires_at, clock_timestamp() + u.ttl_us * interval '1 microsecond')
      where x.id = u.id and x.namespace = p_namespace and x.name = u.name and x.fence is not null and x.session is null
        and x.expires_at > clock_timestamp()
      returning x.fence, leasehold._micros(x.acquired_at) into a.fence, a.acquired_us;
      if found then
        a.verdict := 'g';
      end if;
    end if;
    if a.verdict is null then
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
  c := row(p_namespace, p_channel, null, null, p_history, leasehold._watched(p_namespace));
  for u in
    select x.name, x.id, x.at::int as at, row_number() over (partition by x.name) = 1 as first
    from unnest(p_names, p_ids) with ordinality as x(name, id, at) order by x.name collate "C", 3
  loop
    hints := null;
    if u.first and (exists (select from leasehold.resource r where r.namespace = p_namespace and r.name = u.name
          and r.id is not null and leasehold._dead(r.session, null))
        or exists (select from leasehold.entry e where e.namespace = p_namespace and e.name = u.name
          and leasehold._dead(e.session, null))) then
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
  return leasehold._operate(row(p_namespace, p_channel, null, null, p_history, leasehold._watched(p_namespace)),
    row('e', p_name, null, null, null, null, null, null, null, null, null, null, p_fence, null, null, p_reason)::leasehold.ask);
end $$;

-- State::records for many resources: those that match, after a name, at most so many names.
-- Live ones only, those who hold before those who wait.
create function leasehold.list_leases(p_namespace text, p_exactly text, p_prefix text, p_after text, p_limit bigint)
returns table (name text, holder text, mode "char", units int, capacity int, fence bigint, acquired_us bigint, asked_us bigint,
  renewed_us bigint, ttl_us bigint, expires_us bigint, note text, metadata jsonb, now_us bigint)
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  with t as (select clock_timestamp() as now), live as (
    select r.name, 0::bigint as seq, r.holder, r.mode, r.units, r.capacity, r.fence, r.acquired_at, r.asked_at,
      r.renewed_at, r.ttl_us, r.expires_at, r.note, r.metadata
    from leasehold.resource r, t
    where r.namespace = p_namespace and r.id is not null and r.expires_at > t.now and not leasehold._dead(r.session, null)
      and (p_exactly is null or r.name = p_exactly) and (p_prefix is null or starts_with(r.name, p_prefix))
      and (p_after is null or r.name collate "C" > p_after)
    union all
    select e.name, e.seq, e.holder, e.mode, e.units, e.capacity, e.fence, e.acquired_at, e.asked_at,
      e.renewed_at, e.ttl_us, e.expires_at, e.note, e.metadata
    from leasehold.entry e, t
    where e.namespace = p_namespace and e.expires_at > t.now and not leasehold._dead(e.session, null)
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

-- Ended leases, newest first: EndedLease.
create function leasehold.list_ended(
  p_namespace text, p_exactly text, p_prefix text, p_failures boolean, p_since_us bigint, p_until_us bigint, p_limit bigint
) returns table (name text, holder text, mode "char", units int, capacity int, fence bigint, asked_us bigint, acquired_us bigint,
  ended_us bigint, ending text, problem text, details text, note text, metadata jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select h.name, h.holder, h.mode, h.units, h.capacity, h.fence, leasehold._micros(h.asked_at), leasehold._micros(h.acquired_at),
    leasehold._micros(h.ended_at), h.ending, h.problem, h.details, h.note, h.metadata
  from leasehold.ended h
  where h.namespace = p_namespace
    and (p_exactly is null or h.name = p_exactly) and (p_prefix is null or starts_with(h.name, p_prefix))
    and (not p_failures or h.ending not in ('released', 'cancelled'))
    and (p_since_us is null or h.ended_at >= to_timestamp(0) + p_since_us * interval '1 microsecond')
    and (p_until_us is null or h.ended_at < to_timestamp(0) + p_until_us * interval '1 microsecond')
  order by h.ended_at desc limit p_limit
$$;

-- Asks to be told of events for a minute; answers the channel to listen to.
create function leasehold.watch(p_namespace text, p_channel text) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
begin
  insert into leasehold.watcher values (p_channel, p_namespace, clock_timestamp() + interval '60 s')
  on conflict (channel) do update set until = excluded.until;
  return leasehold._event_channel(p_namespace);
end $$;

-- Makes this connection one that leases live by; answers its number.
create function leasehold.open_session(p_client text) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  class int := leasehold._class();
  opened int;
begin
  -- A lock of this connection outlives the rollback of what recorded it: it is used again.
  select l.objid::int into opened from pg_locks l
  where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.classid = class::oid and l.objsubid = 2 and l.objid > 0 and l.granted
  limit 1;
  if not found then
    -- Numbers come again one day; one whose connection still lives is passed over.
    loop
      opened := nextval('leasehold.session_id');
      exit when pg_try_advisory_lock(class, opened);
    end loop;
  end if;
  insert into leasehold.session values (opened, pg_backend_pid(), clock_timestamp(), p_client)
  on conflict (id) do update set pid = excluded.pid, opened_at = excluded.opened_at, client = excluded.client;
  perform set_config('leasehold_session.id', opened::text, false);
  return opened;
end $$;

-- Bounded work that keeps the tables small; any client may call it at any time, a scheduled job too.
-- Answers how much was done; 0 when another does it just now.
create function leasehold.maintain(p_keep_history interval default '7 days', p_most int default 1000) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
declare
  t timestamptz := clock_timestamp();
  u record;
  done int := 0;
  removed int;
begin
  perform leasehold._check_isolation();
  if p_keep_history < interval '1 day' and not pg_has_role(session_user, current_user, 'member') then
    raise exception 'history younger than a day is removed by the owner of the schema only' using errcode = '42501';
  end if;
  if not pg_try_advisory_xact_lock(leasehold._class(), 0) then
    return 0;
  end if;
  -- Leases that ran out or whose connection died, and that nobody asks for.
  for u in
    select namespace, name from (
      select r.namespace, r.name from leasehold.resource r
      where r.id is not null and (r.expires_at <= t or leasehold._dead(r.session, null))
      union all
      select e.namespace, e.name from leasehold.entry e where e.expires_at <= t or leasehold._dead(e.session, null)
      union all
      -- The last of many readers leaves without writing the row.
      select r.namespace, r.name from leasehold.resource r
      where r.crowd and r.renewed_at < t - interval '1 day'
        and not exists (select from leasehold.entry e where e.namespace = r.namespace and e.name = r.name)
    ) lapsed group by 1, 2 order by namespace collate "C", name collate "C" limit p_most
  loop
    -- One that somebody keeps locked does not keep the others from being tidied up.
    perform 1 from leasehold.resource r where r.namespace = u.namespace and r.name = u.name for no key update skip locked;
    continue when not found or not pg_try_advisory_xact_lock(leasehold._gate(u.namespace, u.name));
    perform leasehold._operate(row(u.namespace, null, null, null, 'a', leasehold._watched(u.namespace)),
      row('n', u.name, null, null, null, null, 0, null, null, null, null, null, null, null, null, null)::leasehold.ask);
    done := done + 1;
  end loop;
  -- Names that nobody used for a day; a fence ahead of the clock is remembered.
  delete from leasehold.resource r where (r.namespace, r.name) in (
    select x.namespace, x.name from leasehold.resource x
    where x.id is null and not x.crowd and x.renewed_at < t - interval '1 day' and x.last_fence < leasehold._micros(t)
    limit p_most for update skip locked);
  get diagnostics removed = row_count;
  done := done + removed;
  delete from leasehold.ended h where h.ctid = any (array(
    select x.ctid from leasehold.ended x where x.ended_at < t - p_keep_history limit p_most));
  get diagnostics removed = row_count;
  done := done + removed;
  delete from leasehold.session s where leasehold._dead(s.id, null);
  delete from leasehold.session_lease l where leasehold._dead(l.session, null);
  delete from leasehold.watcher w where w.until < t;
  return done;
end $$;
