-- The rule of model.rs, ported. Nothing here is for others to call.

-- Microseconds since 1970, as in Timestamp.
create function leasehold._micros(t timestamptz) returns bigint
language sql stable as $$ select (date_part('epoch', t) * 1000000)::bigint $$;

-- next_fence: above the last one, not below the wall clock, not below a floor within reason.
create function leasehold._next_fence(p_last bigint, p_wall bigint, p_floor bigint) returns bigint
language sql immutable as $$ select greatest(p_last + 1, p_wall, case when p_floor is null then 0 else least(p_floor, p_wall + 10000000) end) $$;

-- When a lease of this length ends: never while its connection lives, if it lives by one.
create function leasehold._end(t timestamptz, p_attached boolean, p_session int, p_ttl_us bigint) returns timestamptz
language sql stable as $$
  select case when p_attached and p_session is not null then 'infinity' else t + p_ttl_us * interval '1 microsecond' end
$$;

-- l for locks, p for permits, e for elections: Mode::family.
create function leasehold._family(p_mode "char") returns "char"
language sql immutable as $$
  select case p_mode when 'x' then 'l'::"char" when 's' then 'l'::"char" when 'l' then 'e'::"char" else 'p'::"char" end
$$;

-- The mode's word, as in Mode::as_str.
create function leasehold._word(p_mode "char") returns text
language sql immutable as $$
  select case p_mode when 'x' then 'exclusive' when 's' then 'shared' when 'l' then 'leader' else 'permit' end
$$;

-- The key that readers share and everyone else who leaves the lone entry takes alone.
-- Its top bit keeps it clear of advisory_key().
create function leasehold._gate(p_namespace text, p_name text) returns bigint
language sql immutable as $$
  select hashtextextended(p_namespace || '/' || p_name, 0) | (-9223372036854775807 - 1)
$$;

-- The class of the advisory locks that sessions hold. It differs from schema to schema, as do their sessions' numbers.
create function leasehold._class() returns int
language sql stable as $$ select 'leasehold.session'::regclass::oid::int # 1279807556 $$;

-- The session of this very connection, if leases live by it: the one whose lock it holds.
-- In plpgsql, as all that is called often and cannot be inlined: its plans are kept.
create function leasehold._own_session() returns int
language plpgsql stable as $$
begin
  return (select l.objid::int from pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.classid = leasehold._class()::oid and l.objsubid = 2
      and l.objid > 0 and l.mode = 'ExclusiveLock' and l.granted limit 1);
end $$;

-- Whether this very connection has that session. The number of a process comes again: its lock decides.
create function leasehold._own(p_session int) returns boolean
language plpgsql stable as $$
begin
  perform 1 from leasehold.session s where s.id = p_session and s.pid = pg_backend_pid();
  return found and p_session is not distinct from leasehold._own_session();
end $$;

-- Presence::Dead: the connection is gone. A probe that gets the connection's own lock proves it, unless
-- it is this very connection's: a connection shares its own locks.
create function leasehold._dead(p_session int) returns boolean
language sql volatile as $$
  select p_session is not null and pg_try_advisory_xact_lock_shared(leasehold._class(), p_session)
     and not leasehold._own(p_session)
$$;

-- The same for whoever looks at a view, whatever its rights.
create function leasehold._lost(p_session int) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$ select leasehold._dead(p_session) $$;

-- The key that guard() shares and a grant takes alone, in this schema. Above every advisory_key(), below every _pin().
create function leasehold._barrier(p_namespace text, p_name text) returns bigint
language sql stable as $$
  select hashtextextended(p_namespace || '/' || p_name, 'leasehold.resource'::regclass::oid::bigint)
    & 1152921504606846975 | 2305843009213693952
$$;

-- Whether one who has the row of a name may grant it: not while a guarded transaction is open (see guard()).
create function leasehold._pass(p_namespace text, p_name text) returns boolean
language sql volatile as $$
  select pg_try_advisory_xact_lock(leasehold._barrier(p_namespace, p_name))
      or leasehold._pass_after_grant(leasehold._barrier(p_namespace, p_name))
$$;

-- The last grant, which has committed and left the row, may have its barrier for a moment yet. Guards share theirs.
create function leasehold._pass_after_grant(p_barrier bigint) returns boolean
language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock_shared(p_barrier);
  return pg_try_advisory_xact_lock(p_barrier);
end $$;

-- The key that guard() shares while it relies on a holder beside the lone one.
-- Above every _barrier(), below zero is the gate's.
create function leasehold._pin(p_fence bigint) returns bigint
language sql immutable as $$ select 4611686018427387904 | p_fence $$;

create function leasehold._event_channel(p_namespace text) returns text
language sql immutable as $$ select 'lh_events_' || left(md5('leasehold.' || p_namespace), 24) $$;

create function leasehold._followed(p_namespace text) returns boolean
language plpgsql stable as $$
begin
  perform 1 from leasehold.watcher w where w.namespace = p_namespace and w.until > clock_timestamp();
  return found;
end $$;

-- The same, without a look at the table while nobody follows anything.
create function leasehold._watched(p_namespace text) returns boolean
language sql volatile as $$
  select coalesce(pg_sequence_last_value('leasehold.followed_until'), 0) > leasehold._micros(clock_timestamp())
     and leasehold._followed(p_namespace)
$$;

-- Tells followers of one thing that happened: a lease::Event as JSON.
create function leasehold._event(
  p_namespace text, p_at timestamptz, p_name text, p_holder text, p_mode "char", p_units int, p_capacity int, p_what jsonb
) returns void
language sql volatile as $$
  select pg_notify(leasehold._event_channel(p_namespace), (jsonb_build_object(
    'at', leasehold._micros(p_at), 'resource', p_name, 'holder', p_holder, 'claim', jsonb_build_object(
      'mode', leasehold._word(p_mode), 'units', p_units, 'capacity', p_capacity)) || p_what)::text)
$$;

-- The lone entry as a row of `entry`.
create function leasehold._lone(r leasehold.resource) returns leasehold.entry
language plpgsql immutable as $$
begin
  return row(r.id, r.namespace, r.name, 0, r.mode, r.units, r.capacity, r.holder, r.note, r.metadata, r.ttl_us,
    r.expires_at, r.asked_at, r.renewed_at, r.acquired_at, r.fence, null, r.session, r.channel)::leasehold.entry;
end $$;

-- Records an ended entry and tells followers: model::Ended::into_record.
create function leasehold._ended(
  c leasehold.caller, e leasehold.entry, p_ended_at timestamptz, p_ending text, p_problem text, p_details text
) returns void
language plpgsql volatile as $$
begin
  if c.history = 'a' or (c.history = 'p' and p_ending not in ('released', 'cancelled')) then
    insert into leasehold.ended values (e.id, e.namespace, e.name, e.mode, e.units, e.capacity, e.holder, e.note,
      e.metadata, e.fence, e.asked_at, e.acquired_at, p_ended_at, p_ending, p_problem, p_details, e.session);
  end if;
  if c.watched then
    perform leasehold._event(e.namespace, p_ended_at, e.name, e.holder, e.mode, e.units, e.capacity,
      jsonb_build_object('event', 'ended', 'ending', p_ending, 'fence', e.fence));
  end if;
end $$;

-- State::busy: those who hold, as JSON, longest first.
create function leasehold._holders(p_namespace text, p_name text, t timestamptz) returns jsonb
language plpgsql stable as $$
begin
  return (select coalesce(jsonb_agg(jsonb_build_object('holder', h.holder, 'note', h.note, 'mode', leasehold._word(h.mode),
    'fence', h.fence, 'held_us', greatest(0, leasehold._micros(t) - leasehold._micros(h.acquired_at))) order by h.seq), '[]')
  from (
    select 0::bigint as seq, r.holder, r.note, r.mode, r.fence, r.acquired_at
    from leasehold.resource r where r.namespace = p_namespace and r.name = p_name and r.id is not null
    union all
    select e.seq, e.holder, e.note, e.mode, e.fence, e.acquired_at
    from leasehold.entry e where e.namespace = p_namespace and e.name = p_name and e.fence is not null
  ) h);
end $$;

-- Settle, apply, settle: State::{acquire, renew, release, evict} on one resource under its row lock.
--
-- q: the operation. The answer's `hints` are for the caller's instance, all
-- others are notified: `g id fence` for a grant, `e id` for an eviction, `c name`
-- when a guarded transaction keeps the head of the queue waiting.
create function leasehold._operate(c leasehold.caller, q leasehold.ask, out a leasehold.answer)
language plpgsql volatile as $$
declare
  r leasehold.resource;
  before leasehold.resource;
  e leasehold.entry;
  w leasehold.entry;
  t timestamptz;
  wall bigint;
  guarded boolean := false;
  passed boolean;  -- null: not tried yet
  known boolean := false;
  rebound boolean := false;
  bound boolean;
  granted int := 0;
  line text;
begin
  -- The row first, then the gate: a statement that had to wait for the row keeps it even if it finds
  -- nothing to do there. Readers take the gate only.
  select * into r from leasehold.resource x where x.namespace = c.namespace and x.name = q.name for no key update;
  if not found then
    if q.op <> 'a' then
      a.verdict := 'n';
      return;
    end if;
    insert into leasehold.resource (namespace, name) values (c.namespace, q.name) on conflict do nothing;
    select * into r from leasehold.resource x where x.namespace = c.namespace and x.name = q.name for no key update;
    if not found then
      raise exception 'the row of this name was removed meanwhile' using errcode = 'LH002';
    end if;
  end if;
  perform pg_advisory_xact_lock(leasehold._gate(c.namespace, q.name));
  before := r;
  t := clock_timestamp();
  wall := leasehold._micros(t);
  if r.reader_base is not null then
    -- Readers came and went without a word: count afresh.
    r.last_fence := r.last_fence + (nextval('leasehold.reader') - r.reader_base);
    r.reader_base := null;
    r.next_end := '-infinity';
  end if;

  for pass in 1..2 loop
    -- Settle: drop what has expired or died. What a guarded transaction pins stays. A lease whose
    -- connection died is gone even if its asker comes by another one: others may have taken it.
    if r.id is not null and (r.expires_at <= t or leasehold._dead(r.session)) then
      passed := coalesce(passed, leasehold._pass(r.namespace, r.name));
      if passed then
        perform leasehold._ended(c, leasehold._lone(r), least(r.expires_at, t),
          case when r.expires_at <= t then 'expired' else 'disconnected' end, null, null);
        r.id := null;
      else
        guarded := true;
      end if;
    end if;
    if r.crowd and pass = 1 and r.next_end <= t then
      for w in
        select * from leasehold.entry x
        where x.namespace = r.namespace and x.name = r.name
          and (x.expires_at <= t or leasehold._dead(x.session))
        order by x.seq for update skip locked
      loop
        if w.fence is not null then
          passed := coalesce(passed, leasehold._pass(r.namespace, r.name));
          -- One lock for all of them, unless one may be guarded: there may be more than the server has locks.
          if not passed and not pg_try_advisory_xact_lock(leasehold._pin(w.fence)) then
            guarded := true;
            continue;
          end if;
        end if;
        delete from leasehold.entry x where x.id = w.id and x.namespace = w.namespace and x.name = w.name;
        perform leasehold._ended(c, w, least(w.expires_at, t),
          case when w.expires_at <= t then 'expired' else 'disconnected' end, null, null);
      end loop;
      select coalesce(sum(x.units) filter (where x.fence is not null), 0), count(*) filter (where x.fence is null),
        coalesce(min(case when x.session is null then x.expires_at else '-infinity' end), 'infinity')
      into r.used, r.waiting, r.next_end
      from leasehold.entry x where x.namespace = r.namespace and x.name = r.name;
    end if;
    -- Settle: grant from the front while units fit.
    if r.waiting > 0 then
      for w in
        select * from leasehold.entry x
        where x.namespace = r.namespace and x.name = r.name and x.fence is null order by x.seq
      loop
        exit when r.used + w.units + (case when r.id is null then 0 else r.units end) > w.capacity;
        -- A permit that was given back may be one that a guarded transaction relies on.
        if (r.used = 0 and r.id is null) or w.mode = 'p' then
          passed := coalesce(passed, leasehold._pass(r.namespace, r.name));
          if not passed then
            guarded := true;
            -- Those who wait ask by themselves when a lease runs out; told by their own asks, they would never stop.
            if q.op not in ('a', 'n') or q.id is null then
              if w.channel = c.channel then
                a.hints := a.hints || ('c ' || r.name);
              elsif w.channel is not null then
                perform pg_notify(w.channel, 'c ' || r.name);
              end if;
            end if;
            exit;
          end if;
        end if;
        r.last_fence := leasehold._next_fence(r.last_fence, wall, w.floor);
        r.used := r.used + w.units;
        r.waiting := r.waiting - 1;
        granted := granted + 1;
        update leasehold.entry x set fence = r.last_fence, acquired_at = t
        where x.id = w.id and x.namespace = w.namespace and x.name = w.name;
        if w.id is distinct from q.id and w.channel is not null then
          line := 'g ' || w.id || ' ' || r.last_fence;
          if w.channel is distinct from c.channel then
            perform pg_notify(w.channel, line);
          else
            a.hints := a.hints || line;
          end if;
        end if;
        if c.watched then
          perform leasehold._event(w.namespace, t, w.name, w.holder, w.mode, w.units, w.capacity,
            jsonb_build_object('event', 'acquired', 'fence', r.last_fence));
        end if;
      end loop;
    end if;
    exit when pass = 2;

    -- Apply.
    e := null;
    if r.id = q.id then
      known := true;
      e := leasehold._lone(r);
    elsif r.crowd and q.op <> 'e' then
      select * into e from leasehold.entry x where x.id = q.id and x.namespace = r.namespace and x.name = r.name;
      known := found;
    end if;

    case q.op
    when 'a', 'n' then
      if known then
        if q.op = 'a' and e.session is not null and c.session is not null then
          -- Whoever asks again may come by a newer connection; an ask that comes late names an older one.
          rebound := c.session > e.session;
          e.session := greatest(e.session, c.session);
        end if;
        if t + q.ttl_us * interval '1 microsecond' > e.expires_at then
          e.expires_at := t + q.ttl_us * interval '1 microsecond';
          e.ttl_us := q.ttl_us;
        end if;
        if q.op = 'n' then
          e.metadata := coalesce(q.metadata, e.metadata);
          if q.mode is not null and q.units <= e.units and q.capacity = e.capacity
            and leasehold._family(q.mode) = leasehold._family(e.mode) then
            if q.units < e.units and e.fence is not null and not coalesce(passed, leasehold._pass(r.namespace, r.name)) then
              -- What it gives up would be granted to others before the transaction ends.
              raise exception 'a guarded transaction relies on all of % until it ends', q.name using errcode = '55P03';
            end if;
            if e.seq <> 0 and e.fence is not null then
              r.used := r.used - e.units + q.units;
            end if;
            e.mode := q.mode;
            e.units := q.units;
          end if;
          if e.fence is not null and q.floor > r.last_fence and q.floor <= greatest(r.last_fence, wall + 10000000) then
            e.fence := q.floor;
            r.last_fence := q.floor;
          end if;
        end if;
        if e.seq = 0 then
          r.fence := e.fence;
          r.expires_at := e.expires_at;
          r.ttl_us := e.ttl_us;
          r.metadata := e.metadata;
          r.mode := e.mode;
          r.units := e.units;
          r.session := e.session;
          r.renewed_at := case when e.expires_at = 'infinity' then r.renewed_at else t end;
        elsif rebound or e.expires_at <> 'infinity' or q.metadata is not null or q.mode is not null or q.floor is not null then
          -- renew_many may have moved the end since it was read.
          update leasehold.entry x set expires_at = greatest(x.expires_at, e.expires_at),
            ttl_us = case when e.expires_at > x.expires_at then e.ttl_us else x.ttl_us end, metadata = e.metadata, mode = e.mode,
            units = e.units, fence = e.fence, session = e.session, renewed_at = t
          where x.id = e.id and x.namespace = e.namespace and x.name = e.name;
        end if;
      elsif q.op = 'n' then
        a.verdict := 'n';
      else
        e := null;
        if r.id is not null then
          e.mode := r.mode;
          e.capacity := r.capacity;
        elsif r.crowd then
          select x.mode, x.capacity into e.mode, e.capacity from leasehold.entry x
          where x.namespace = r.namespace and x.name = r.name order by x.seq limit 1;
          r.crowd := found;
          if not found then
            r.used := 0;
            r.next_end := 'infinity';
          end if;
        end if;
        if e.mode is not null and (e.capacity <> q.capacity or leasehold._family(e.mode) <> leasehold._family(q.mode)) then
          a.verdict := 's';
          a.mode := e.mode;
          a.capacity := e.capacity;
          exit;
        end if;
        if not guarded and r.waiting = 0 and ((r.used = 0 and r.id is null) or q.mode = 'p') then
          passed := coalesce(passed, leasehold._pass(r.namespace, r.name));
          guarded := not passed;
        end if;
        e := row(q.id, r.namespace, r.name, 0, q.mode, q.units, q.capacity, q.holder, q.note, q.metadata, q.ttl_us,
          leasehold._end(t, q.attached, c.session, q.ttl_us),
          t, t, null, null, q.floor, case when q.attached then c.session end, c.channel)::leasehold.entry;
        if not guarded and r.waiting = 0
          and r.used + q.units + (case when r.id is null then 0 else r.units end) <= q.capacity then
          r.last_fence := leasehold._next_fence(r.last_fence, wall, q.floor);
          e.fence := r.last_fence;
          e.acquired_at := t;
          if c.watched then
            perform leasehold._event(e.namespace, t, e.name, e.holder, e.mode, e.units, e.capacity,
              jsonb_build_object('event', 'acquired', 'fence', e.fence));
          end if;
        elsif q.try then
          a.verdict := 'b';
        elsif c.watched then
          perform leasehold._event(e.namespace, t, e.name, e.holder, e.mode, e.units, e.capacity, '{"event": "waiting"}');
        end if;
        if e.fence is not null and r.id is null and not r.crowd then
          r.id := e.id;
          r.fence := e.fence;
          r.mode := e.mode;
          r.units := e.units;
          r.capacity := e.capacity;
          r.holder := e.holder;
          r.note := e.note;
          r.metadata := e.metadata;
          r.ttl_us := e.ttl_us;
          r.expires_at := e.expires_at;
          r.asked_at := t;
          r.renewed_at := t;
          r.acquired_at := t;
          r.session := e.session;
          r.channel := e.channel;
        elsif a.verdict is null then
          insert into leasehold.entry (id, namespace, name, mode, units, capacity, holder, note, metadata, ttl_us, expires_at,
            asked_at, renewed_at, acquired_at, fence, floor, session, channel)
          values (e.id, e.namespace, e.name, e.mode, e.units, e.capacity, e.holder, e.note, e.metadata, e.ttl_us, e.expires_at,
            t, t, e.acquired_at, e.fence, e.floor, e.session, e.channel)
          returning seq into e.seq;
          r.crowd := true;
          r.next_end := least(r.next_end, case when e.session is null then e.expires_at else '-infinity' end);
          if e.fence is null then
            r.waiting := r.waiting + 1;
          else
            r.used := r.used + e.units;
            if e.mode = 's' and r.waiting = 0 then
              r.reader_base := nextval('leasehold.reader');
            end if;
          end if;
        end if;
        -- Nothing can be granted by adding one.
        exit;
      end if;

    when 'r' then
      if not known then
        a.verdict := 'n';
      else
        -- One that a guarded transaction kept past its end was no longer its holder's to release.
        a.verdict := case when e.fence is null then 'l' when e.expires_at <= t then 'n' else 'f' end;
        if e.seq = 0 then
          r.id := null;
          r.renewed_at := t;
        else
          delete from leasehold.entry x where x.id = e.id and x.namespace = e.namespace and x.name = e.name;
          if e.fence is null then
            r.waiting := r.waiting - 1;
          else
            r.used := r.used - e.units;
          end if;
        end if;
        perform leasehold._ended(c, e, least(e.expires_at, t), case when e.expires_at <= t then 'expired'
          when e.fence is null and q.ending = 'released' then 'cancelled' else q.ending end, q.problem, q.details);
      end if;

    when 'e' then
      if r.id is not null and r.fence = q.floor then
        e := leasehold._lone(r);
        known := true;
      elsif r.crowd then
        select * into e from leasehold.entry x where x.namespace = r.namespace and x.name = r.name and x.fence = q.floor;
        known := found;
      end if;
      if not known then
        a.verdict := 'n';
        a.holders := leasehold._holders(r.namespace, r.name, t);
      else
        a.verdict := 'e';
        a.holders := jsonb_build_array(jsonb_build_object('holder', e.holder));
        if e.seq = 0 then
          r.id := null;
          r.renewed_at := t;
        else
          delete from leasehold.entry x where x.id = e.id and x.namespace = e.namespace and x.name = e.name;
          r.used := r.used - e.units;
        end if;
        perform leasehold._ended(c, e, t, 'evicted', 'evicted', q.details);
        line := 'e ' || e.id;
        if e.channel = c.channel then
          a.hints := a.hints || line;
        elsif e.channel is not null then
          perform pg_notify(e.channel, line);
        end if;
      end if;
    end case;
  end loop;

  if r.crowd and r.waiting = 0 and r.reader_base is null and r.used <= 0 then
    r.crowd := exists (select from leasehold.entry x where x.namespace = r.namespace and x.name = r.name);
    if not r.crowd then
      r.used := 0;
      r.next_end := 'infinity';
    end if;
  end if;
  if r is distinct from before then
    update leasehold.resource x set last_fence = r.last_fence, reader_base = r.reader_base, crowd = r.crowd, used = r.used,
      waiting = r.waiting, next_end = r.next_end, id = r.id, fence = r.fence, mode = r.mode, units = r.units, capacity = r.capacity,
      holder = r.holder, note = r.note, metadata = r.metadata, ttl_us = r.ttl_us, expires_at = r.expires_at,
      asked_at = r.asked_at, renewed_at = r.renewed_at, acquired_at = r.acquired_at, session = r.session, channel = r.channel
    where x.namespace = r.namespace and x.name = r.name;
  end if;

  -- State::standing.
  if q.op in ('a', 'n') and a.verdict is null then
    if e.seq <> 0 and e.fence is null then
      -- Its own settling may have granted it.
      select x.fence, x.acquired_at into e.fence, e.acquired_at from leasehold.entry x
      where x.id = e.id and x.namespace = e.namespace and x.name = e.name;
    end if;
    if e.fence is not null then
      a.verdict := 'g';
      a.fence := e.fence;
      a.acquired_us := leasehold._micros(e.acquired_at);
    else
      a.verdict := 'q';
      a.fence := r.last_fence;
      select count(*) filter (where x.fence is null), leasehold._micros(nullif(min(x.expires_at), 'infinity')) - wall,
        coalesce(bool_or(x.session is not null), false) or (r.id is not null and r.session is not null)
      into a.ahead, a.ask_again_us, bound
      from leasehold.entry x where x.namespace = r.namespace and x.name = r.name and x.seq < e.seq;
      if r.id is not null and r.expires_at <> 'infinity' then
        a.ask_again_us := least(a.ask_again_us, leasehold._micros(r.expires_at) - wall);
      end if;
      -- Nobody tells when a guarded transaction ends: the first in line looks, the others hear from it.
      if guarded then
        a.ask_again_us := case when a.ahead = 0 then 100000 else greatest(a.ask_again_us, 1000000) end;
      end if;
      a.waiting := bound::int;
      if a.ask_again_us < 1000 then
        a.ask_again_us := 1000;
      end if;
    end if;
  elsif a.verdict = 'b' then
    a.holders := leasehold._holders(r.namespace, r.name, t);
    a.waiting := r.waiting;
  end if;
  a.granted := granted + (q.op = 'a' and known)::int;
end $$;
