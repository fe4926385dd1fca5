-- The rule of model.rs, ported. Nothing here is for others to call.
--
-- The codes of the errors that these and the other functions raise, beside those of Postgres:
--   LH001  the transaction is not READ COMMITTED: begin another one
--   LH002  a concurrent operation came first and nothing was done: try again
--   LH003  the name is in use as another kind of lock, or with another capacity
--   LH004  guard(): the lease is not held under this fence
--   LH005  acquire(): another holder has the lock
--   LH006  acquire_lock_wait(): the lock is busy; callers do not see it
--   LH007  the installation was refused: a schema or a name in it belongs to others
--
-- Short names: c caller, q operation, s step, r resource, e entry, w entry in a loop, a answer, u row of a loop, t time.

-- Microseconds since 1970, as in Timestamp.
create function leasehold._micros(t timestamptz) returns bigint
language sql stable as $$ select (date_part('epoch', t) * 1000000)::bigint $$;

-- next_fence: above the last one, not below the wall clock, not below a floor within reason.
create function leasehold._next_fence(p_last bigint, p_wall bigint, p_floor bigint) returns bigint
language sql immutable as $$ select greatest(p_last + 1, p_wall, case when p_floor is null then 0 else least(p_floor, p_wall + 10000000) end) $$;

-- When a lease with this ttl expires: never, if it is bound to a session.
create function leasehold._expiry(t timestamptz, p_attached boolean, p_session int, p_ttl_us bigint) returns timestamptz
language sql stable as $$
  select case when p_attached and p_session is not null then 'infinity' else t + p_ttl_us * interval '1 microsecond' end
$$;

-- l for locks, p for permits, e for elections: Mode::family.
create function leasehold._family(p_mode "char") returns "char"
language sql immutable as $$
  select case p_mode when 'x' then 'l'::"char" when 's' then 'l'::"char" when 'l' then 'e'::"char" else 'p'::"char" end
$$;

-- The mode's name, as in Mode::as_str.
create function leasehold._mode_name(p_mode "char") returns text
language sql immutable as $$
  select case p_mode when 'x' then 'exclusive' when 's' then 'shared' when 'l' then 'leader' else 'permit' end
$$;

-- Lock key: readers that join or leave others take it shared, operations that must see all readers exclusively.
-- Key ranges: _reader_lock() < 0 <= advisory_key() < _holder_guard_lock().
create function leasehold._reader_lock(p_namespace text, p_name text) returns bigint
language sql immutable as $$
  select hashtextextended(p_namespace || '/' || p_name, 0) | (-9223372036854775807 - 1)
$$;

-- The class of the advisory locks that sessions hold. It differs from schema to schema, as do their sessions' ids.
-- Here and below, 1279807556 is LHPD in ASCII: it keeps our locks apart from those of other programs.
create function leasehold._session_lock_class() returns int
language sql stable as $$ select 'leasehold.session'::regclass::oid::int # 1279807556 $$;

-- The session of this very connection, if it has one: the one whose lock it holds.
-- In plpgsql, which caches the plan, like every function that is called often and cannot be inlined.
create function leasehold._own_session() returns int
language plpgsql stable as $$
begin
  return (select l.objid::int from pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.classid = leasehold._session_lock_class()::oid and l.objsubid = 2
      and l.objid > 0 and l.mode = 'ExclusiveLock' and l.granted limit 1);
end $$;

-- Whether this very connection has that session. Pids are reused, so check the lock too.
create function leasehold._is_own_session(p_session int) returns boolean
language plpgsql stable as $$
begin
  perform 1 from leasehold.session s where s.id = p_session and s.pid = pg_backend_pid();
  return found and p_session is not distinct from leasehold._own_session();
end $$;

-- Presence::Dead: the session's connection is gone. Getting the session's lock proves it, except on the session's own
-- connection, which shares its own locks. A standby does not know the primary's locks.
create function leasehold._session_dead(p_session int) returns boolean
language sql volatile as $$
  select p_session is not null and not pg_is_in_recovery() and pg_try_advisory_xact_lock_shared(leasehold._session_lock_class(), p_session)
     and not leasehold._is_own_session(p_session)
$$;

-- The same with the owner's rights, for views.
create function leasehold._session_dead_definer(p_session int) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$ select leasehold._session_dead(p_session) $$;

-- Lock key of a name in this schema, a class and a number: guard() takes it shared, a grant exclusively. A hash collision
-- only delays a grant.
create function leasehold._guard_lock_class() returns int
language sql stable as $$ select 'leasehold.resource'::regclass::oid::int # 1279807556 $$;

create function leasehold._guard_lock(p_namespace text, p_name text) returns int
language sql immutable as $$ select hashtext(p_namespace || '/' || p_name) $$;

-- Returns whether a lease that ends in this transaction may be granted again: no guarded transaction (see guard()) is open,
-- and none can start before commit. The caller has locked the row of the name.
create function leasehold._may_grant(p_namespace text, p_name text) returns boolean
language sql volatile as $$
  select pg_try_advisory_xact_lock(leasehold._guard_lock_class(), leasehold._guard_lock(p_namespace, p_name))
      or leasehold._may_grant_after_commit(leasehold._guard_lock(p_namespace, p_name))
$$;

-- The same for a name that was free before this transaction: guard() would find it free, so test the lock without keeping
-- it. A lock kept for each name of a statement could exhaust the server's lock table.
create function leasehold._may_grant_free(p_namespace text, p_name text, p_freed_at timestamptz) returns boolean
language sql volatile as $$
  select p_freed_at < transaction_timestamp() and leasehold._not_guarded(p_namespace, p_name) or leasehold._may_grant(p_namespace, p_name)
$$;

-- Tests the guard lock: false while a guarded transaction is open.
create function leasehold._not_guarded(p_namespace text, p_name text) returns boolean
language sql volatile as $$
  select case when pg_try_advisory_lock(leasehold._guard_lock_class(), leasehold._guard_lock(p_namespace, p_name))
    then pg_advisory_unlock(leasehold._guard_lock_class(), leasehold._guard_lock(p_namespace, p_name)) else false end
$$;

-- Waits for a grant that is being committed, which has the guard lock exclusively, but not for guards, which share it.
create function leasehold._may_grant_after_commit(p_guard_lock int) returns boolean
language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock_shared(leasehold._guard_lock_class(), p_guard_lock);
  return pg_try_advisory_xact_lock(leasehold._guard_lock_class(), p_guard_lock);
end $$;

-- Lock key: guard() shares it while it relies on a holder in `entry`. See _reader_lock() for the ranges of keys.
create function leasehold._holder_guard_lock(p_fence bigint) returns bigint
language sql immutable as $$ select 4611686018427387904 | p_fence $$;

-- Where events of a namespace are sent.
create function leasehold._event_channel(p_namespace text) returns text
language sql stable as $$ select c.channel || left(md5(p_namespace), 24) from leasehold.event_channel c $$;

-- Whether somebody watches events of the namespace, by the table.
create function leasehold._has_watcher(p_namespace text) returns boolean
language plpgsql stable as $$
begin
  perform 1 from leasehold.watcher w where w.namespace = p_namespace and w.until > clock_timestamp();
  return found;
end $$;

-- The same, without reading the table while nobody watches anything.
create function leasehold._watched(p_namespace text) returns boolean
language sql volatile as $$ select pg_sequence_last_value('leasehold.watched') is not null and leasehold._has_watcher(p_namespace) $$;

-- Sends a lease::Event, as JSON, to those who watch.
create function leasehold._event(
  p_namespace text, p_at timestamptz, p_name text, p_holder text, p_mode "char", p_units int, p_capacity int, p_what jsonb
) returns void
language sql volatile as $$
  select pg_notify(leasehold._event_channel(p_namespace), (jsonb_build_object(
    'at', leasehold._micros(p_at), 'resource', p_name, 'holder', p_holder, 'claim', jsonb_build_object(
      'mode', leasehold._mode_name(p_mode), 'units', p_units, 'capacity', p_capacity)) || p_what)::text)
$$;

-- The inline holder as a row of `entry`.
create function leasehold._inline_entry(r leasehold.resource) returns leasehold.entry
language plpgsql immutable as $$
begin
  return row(r.id, r.namespace, r.name, 0, r.mode, r.units, r.capacity, r.holder, r.note, r.metadata,
    coalesce(r.ttl_us, leasehold._micros(r.expires_at) - leasehold._micros(r.acquired_at)), r.expires_at,
    coalesce(r.asked_at, r.acquired_at), coalesce(r.renewed_at, r.acquired_at), r.acquired_at, r.fence, null, r.session, r.channel, false)::leasehold.entry;
end $$;

-- Records an ended entry and sends the event: model::Ended::into_record. ended_at is at least acquired_at, even if the
-- clock went back.
create function leasehold._ended(
  c leasehold.caller, e leasehold.entry, p_ended_at timestamptz, p_ending text, p_problem text, p_details text
) returns void
language plpgsql volatile as $$
begin
  if c.history = 'a' or (c.history = 'p' and p_ending not in ('released', 'cancelled')) then
    insert into leasehold.ended values (e.id, e.namespace, e.name, e.mode, e.units, e.capacity, e.holder, e.note,
      e.metadata, e.fence, e.asked_at, e.acquired_at, greatest(p_ended_at, e.acquired_at), p_ending, p_problem, p_details);
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
  return (select coalesce(jsonb_agg(jsonb_build_object('holder', h.holder, 'note', h.note, 'mode', leasehold._mode_name(h.mode),
    'fence', h.fence, 'held_us', greatest(0, leasehold._micros(t) - leasehold._micros(h.acquired_at))) order by h.seq), '[]')
  from leasehold._lease h where h.namespace = p_namespace and h.name = p_name and h.fence is not null);
end $$;

-- Settle, apply, settle: State::{acquire, renew, release, evict} on one resource under its row lock.
--
-- q: the operation. The answer's `hints` are for the caller's instance, all
-- others are notified: `g id fence` for a grant, `p id fence` for a provisional one,
-- `e id` for an eviction, `c name` when a guarded transaction keeps the head of the queue waiting.
create function leasehold._operate(c leasehold.caller, q leasehold.operation, out a leasehold.answer)
language plpgsql volatile as $$
declare
  before leasehold.resource;
  r leasehold.resource;
  s leasehold.step;
begin
  -- Lock order: row, then reader lock. Readers take only the latter.
  select * into before from leasehold.resource x where x.namespace = c.namespace and x.name = q.name for no key update;
  if not found then
    if q.op <> 'a' then
      a.verdict := 'n';
      return;
    end if;
    insert into leasehold.resource (namespace, name) values (c.namespace, q.name) on conflict do nothing;
    select * into before from leasehold.resource x where x.namespace = c.namespace and x.name = q.name for no key update;
    if not found then
      raise exception 'the row of this name was removed meanwhile' using errcode = 'LH002';
    end if;
  end if;
  before.last_fence := greatest(before.last_fence, before.fence);
  r := before;
  if r.reader_base is not null then
    -- Readers did not update this row: recount.
    perform pg_advisory_xact_lock(leasehold._reader_lock(c.namespace, q.name));
    r.last_fence := r.last_fence + (nextval('leasehold.reader') - r.reader_base);
    r.reader_base := null;
    r.next_end := '-infinity';
  end if;
  a.granted := 0;
  s := row(r, null, false, clock_timestamp(), false, null, q.op = 's', a)::leasehold.step;
  s := leasehold._settle(c, q, true, s);
  if q.op in ('a', 'n', 'r') then
    s := leasehold._find(q, s);
  end if;
  s := case
    when q.op = 'a' and not s.existed then leasehold._apply_acquire(c, q, s)
    when q.op in ('a', 'n') and s.existed then leasehold._apply_renew(c, q, s)
    when q.op in ('r', 'e') then leasehold._apply_end(c, q, s)
    else s end;
  if not s.settled then
    s := leasehold._settle(c, q, false, s);
  end if;
  s.r := leasehold._store(s.r, before);
  a := leasehold._standing(q, s);
end $$;

-- Drops what has expired or died, then grants from the front while units fit. What a guarded transaction relies on stays.
create function leasehold._settle(c leasehold.caller, q leasehold.operation, p_first boolean, inout s leasehold.step)
language plpgsql volatile as $$
declare
  w leasehold.entry;
  r leasehold.resource := s.r;
  a leasehold.answer := s.a;
begin
  -- A lease whose session died is gone even if its holder asks again by another one: others may have taken it.
  if r.id is not null and (r.expires_at <= s.now or leasehold._session_dead(r.session)) then
    s.may_grant := coalesce(s.may_grant, leasehold._may_grant(r.namespace, r.name));
    if s.may_grant then
      perform leasehold._ended(c, leasehold._inline_entry(r), least(r.expires_at, s.now),
        case when r.expires_at <= s.now then 'expired' else 'disconnected' end, null, null);
      r.id := null;
      r.freed_at := s.now;
    else
      s.guarded := true;
    end if;
  end if;
  if r.has_entries and p_first and r.next_end <= s.now then
    for w in
      select * from leasehold.entry x
      where x.namespace = r.namespace and x.name = r.name
        and (x.expires_at <= s.now or leasehold._session_dead(x.session))
      order by x.seq for update skip locked
    loop
      if w.fence is not null then
        s.may_grant := coalesce(s.may_grant, leasehold._may_grant(r.namespace, r.name));
        -- Use one guard lock for all if possible; per-holder locks could exhaust the lock table.
        if not s.may_grant and not pg_try_advisory_xact_lock(leasehold._holder_guard_lock(w.fence)) then
          s.guarded := true;
          continue;
        end if;
      end if;
      delete from leasehold.entry x where x.id = w.id and x.namespace = w.namespace and x.name = w.name;
      perform leasehold._ended(c, w, least(w.expires_at, s.now),
        case when w.expires_at <= s.now then 'expired' else 'disconnected' end, null, null);
    end loop;
    select coalesce(sum(x.units) filter (where x.fence is not null), 0), count(*) filter (where x.fence is null),
      coalesce(min(case when x.session is null then x.expires_at else '-infinity' end), 'infinity')
    into r.used, r.waiting, r.next_end
    from leasehold.entry x where x.namespace = r.namespace and x.name = r.name;
  end if;
  if r.waiting > 0 then
    for w in
      select * from leasehold.entry x
      where x.namespace = r.namespace and x.name = r.name and x.fence is null order by x.seq
    loop
      exit when r.used + w.units + (case when r.id is null then 0 else r.units end) > w.capacity;
      -- A permit that was given back may be one that a guarded transaction relies on.
      if (r.used = 0 and r.id is null) or w.mode = 'p' then
        s.may_grant := coalesce(s.may_grant, leasehold._may_grant(r.namespace, r.name));
        if not s.may_grant then
          s.guarded := true;
          -- No hint during acquire or renew: each would trigger the next.
          if q.op not in ('a', 'n') then
            a.hints := leasehold._hint(c, a.hints, w.channel, 'c ' || r.name);
          end if;
          exit;
        end if;
      end if;
      r.last_fence := leasehold._next_fence(r.last_fence, leasehold._micros(s.now), w.floor);
      r.waiting := r.waiting - 1;
      a.granted := a.granted + 1;
      -- Entry::hand_over.
      w.provisional := w.session is not null and w.channel is distinct from c.channel;
      if r.id is null and r.used = 0 and not w.provisional then
        delete from leasehold.entry x where x.id = w.id and x.namespace = w.namespace and x.name = w.name;
        w.fence := r.last_fence;
        w.acquired_at := greatest(s.now, r.freed_at);
        r := leasehold._with_inline_entry(r, w);
      else
        r.used := r.used + w.units;
        update leasehold.entry x set fence = r.last_fence, acquired_at = s.now, provisional = w.provisional,
          expires_at = case when w.provisional then s.now + least(w.ttl_us, 5000000) * interval '1 microsecond' else x.expires_at end
        where x.id = w.id and x.namespace = w.namespace and x.name = w.name;
      end if;
      if w.id is distinct from q.id then
        a.hints := leasehold._hint(c, a.hints, w.channel,
          case when w.provisional then 'p ' else 'g ' end || w.id || ' ' || r.last_fence);
      end if;
      if c.watched then
        perform leasehold._event(w.namespace, s.now, w.name, w.holder, w.mode, w.units, w.capacity,
          jsonb_build_object('event', 'acquired', 'fence', r.last_fence));
      end if;
    end loop;
  end if;
  s.r := r;
  s.a := a;
end $$;

-- Sends a line to the instance that listens there; one for the caller's own instance goes with the answer.
create function leasehold._hint(c leasehold.caller, p_hints text[], p_channel text, p_line text) returns text[]
language plpgsql volatile as $$
begin
  if p_channel = c.channel then
    return p_hints || p_line;
  elsif p_channel <> 'sql' then
    perform pg_notify(p_channel, p_line);
  end if;
  return p_hints;
end $$;

-- The resource with this entry as its inline holder.
create function leasehold._with_inline_entry(r leasehold.resource, e leasehold.entry) returns leasehold.resource
language plpgsql immutable as $$
begin
  return row(r.namespace, r.name, r.last_fence, r.reader_base, r.has_entries, r.used, r.waiting, r.next_end, r.freed_at, e.id, e.fence,
    e.mode, e.units, e.capacity, e.holder, e.note, e.metadata, e.ttl_us, e.expires_at, e.asked_at, e.renewed_at, e.acquired_at,
    e.session, e.channel)::leasehold.resource;
end $$;

-- State::acquire for an entry that does not exist yet.
create function leasehold._apply_acquire(c leasehold.caller, q leasehold.operation, inout s leasehold.step)
language plpgsql volatile as $$
declare
  r leasehold.resource := s.r;
  e leasehold.entry;
  a leasehold.answer := s.a;
begin
  -- An added entry frees no units: skip the second settling.
  s.settled := true;
  if r.id is not null then
    e.mode := r.mode;
    e.capacity := r.capacity;
  elsif r.has_entries then
    select x.mode, x.capacity into e.mode, e.capacity from leasehold.entry x
    where x.namespace = r.namespace and x.name = r.name order by x.seq limit 1;
    r.has_entries := found;
    if not found then
      r.used := 0;
      r.next_end := 'infinity';
    end if;
  end if;
  if e.mode is not null and (e.capacity <> q.capacity or leasehold._family(e.mode) <> leasehold._family(q.mode)) then
    a.verdict := 's';
    a.mode := e.mode;
    a.capacity := e.capacity;
    s.r := r;
    s.a := a;
    return;
  end if;
  if not s.guarded and r.waiting = 0 and ((r.used = 0 and r.id is null) or q.mode = 'p') then
    s.may_grant := coalesce(s.may_grant, leasehold._may_grant(r.namespace, r.name));
    s.guarded := not s.may_grant;
    -- Read the clock again: taking the guard lock may have waited.
    s.now := greatest(s.now, clock_timestamp());
  end if;
  e := row(q.id, r.namespace, r.name, 0, q.mode, q.units, q.capacity, q.holder, q.note, q.metadata, q.ttl_us,
    leasehold._expiry(s.now, q.attached, c.session, q.ttl_us), s.now, s.now, null, null, q.floor,
    case when q.attached then c.session end, c.channel, false)::leasehold.entry;
  if not s.guarded and r.waiting = 0
    and r.used + q.units + (case when r.id is null then 0 else r.units end) <= q.capacity then
    r.last_fence := leasehold._next_fence(r.last_fence, leasehold._micros(s.now), q.floor);
    e.fence := r.last_fence;
    e.acquired_at := greatest(s.now, r.freed_at);
  elsif r.waiting > q.max_ahead then
    a.verdict := 'b';
  end if;
  if c.watched and a.verdict is null then
    perform leasehold._event(e.namespace, s.now, e.name, e.holder, e.mode, e.units, e.capacity, case when e.fence is null
      then '{"event": "waiting"}' else jsonb_build_object('event', 'acquired', 'fence', e.fence) end);
  end if;
  if e.fence is not null and r.id is null and not r.has_entries then
    r := leasehold._with_inline_entry(r, e);
  elsif a.verdict is null then
    insert into leasehold.entry (id, namespace, name, mode, units, capacity, holder, note, metadata, ttl_us, expires_at,
      asked_at, renewed_at, acquired_at, fence, floor, session, channel)
    values (e.id, e.namespace, e.name, e.mode, e.units, e.capacity, e.holder, e.note, e.metadata, e.ttl_us, e.expires_at,
      s.now, s.now, e.acquired_at, e.fence, e.floor, e.session, e.channel)
    returning seq into e.seq;
    r.has_entries := true;
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
  s.r := r;
  s.e := e;
  s.a := a;
end $$;

-- Finds the entry that an operation is about.
create function leasehold._find(q leasehold.operation, inout s leasehold.step)
language plpgsql volatile as $$
declare
  e leasehold.entry;
begin
  -- Leases of acquire_lock() share their id.
  if (s.r).id = q.id and (q.holder is null or q.holder = (s.r).holder or q.id <> leasehold._sql_id()) then
    s.existed := true;
    s.e := leasehold._inline_entry(s.r);
  elsif (s.r).has_entries then
    select * into e from leasehold.entry x where x.id = q.id and x.namespace = (s.r).namespace and x.name = (s.r).name;
    s.existed := found;
    s.e := e;
  end if;
end $$;

-- State::renew, and State::acquire for an entry that exists.
create function leasehold._apply_renew(c leasehold.caller, q leasehold.operation, inout s leasehold.step)
language plpgsql volatile as $$
declare
  moved boolean := false;
  detached boolean := false;
  r leasehold.resource := s.r;
  e leasehold.entry := s.e;
begin
  if q.op = 'a' and e.session is not null and c.session is not null then
    -- A repeated request may name a newer session; a delayed duplicate names an older one.
    moved := c.session > e.session;
    e.session := greatest(e.session, c.session);
  end if;
  if e.provisional then
    -- Its own instance confirms it; nothing else moves its end.
    e.provisional := e.channel is distinct from c.channel;
    if not e.provisional then
      e.expires_at := 'infinity';
      moved := true;
    end if;
  elsif s.now + q.ttl_us * interval '1 microsecond' > e.expires_at then
    e.expires_at := s.now + q.ttl_us * interval '1 microsecond';
    e.ttl_us := q.ttl_us;
  end if;
  if q.op = 'n' and not q.attached and e.session is not null and e.fence is not null and not e.provisional
    and e.channel is not distinct from c.channel then
    -- Entry::detach.
    e.session := null;
    e.expires_at := s.now + q.ttl_us * interval '1 microsecond';
    e.ttl_us := q.ttl_us;
    detached := true;
  end if;
  if q.op = 'n' then
    e.metadata := coalesce(q.metadata, e.metadata);
    if q.mode is not null and q.units <= e.units and q.capacity = e.capacity
      and leasehold._family(q.mode) = leasehold._family(e.mode) then
      if q.units < e.units and e.fence is not null and not coalesce(s.may_grant, leasehold._may_grant(r.namespace, r.name)) then
        -- Refuse: the units that it gives up would be granted before the guarded transaction ends.
        raise exception 'a guarded transaction relies on all of % until it ends', q.name using errcode = '55P03';
      end if;
      if e.seq <> 0 and e.fence is not null then
        r.used := r.used - e.units + q.units;
      end if;
      e.mode := q.mode;
      e.units := q.units;
    end if;
    if e.fence is not null and q.floor > r.last_fence
      and q.floor <= greatest(r.last_fence, leasehold._micros(s.now) + 10000000) then
      e.fence := q.floor;
      r.last_fence := q.floor;
    end if;
  end if;
  if e.seq = 0 then
    e.renewed_at := case when e.expires_at = 'infinity' then e.renewed_at else s.now end;
    r := leasehold._with_inline_entry(r, e);
  elsif moved or e.expires_at <> 'infinity' or q.metadata is not null or q.mode is not null or q.floor is not null then
    -- renew_many may have moved the end since it was read.
    update leasehold.entry x set expires_at = case when detached then e.expires_at else greatest(x.expires_at, e.expires_at) end,
      ttl_us = case when detached or e.expires_at > x.expires_at then e.ttl_us else x.ttl_us end, metadata = e.metadata, mode = e.mode,
      units = e.units, fence = e.fence, session = e.session, provisional = x.provisional and e.provisional, renewed_at = s.now
    where x.id = e.id and x.namespace = e.namespace and x.name = e.name;
  end if;
  s.r := r;
  s.e := e;
end $$;

-- State::release and State::evict.
create function leasehold._apply_end(c leasehold.caller, q leasehold.operation, inout s leasehold.step)
language plpgsql volatile as $$
declare
  r leasehold.resource := s.r;
  e leasehold.entry := s.e;
  a leasehold.answer := s.a;
  expired boolean;
begin
  if q.op = 'e' and r.id is not null and r.fence = q.floor then
    e := leasehold._inline_entry(r);
    s.existed := true;
  elsif q.op = 'e' and r.has_entries then
    select * into e from leasehold.entry x where x.namespace = r.namespace and x.name = r.name and x.fence = q.floor;
    s.existed := found;
  end if;
  if not s.existed then
    a.verdict := 'n';
    if q.op = 'e' then
      a.holders := leasehold._holders(r.namespace, r.name, s.now);
    end if;
    s.a := a;
    return;
  end if;
  if e.seq = 0 then
    r.id := null;
    r.freed_at := s.now;
  else
    delete from leasehold.entry x where x.id = e.id and x.namespace = e.namespace and x.name = e.name;
    if e.fence is null then
      r.waiting := r.waiting - 1;
    else
      r.used := r.used - e.units;
    end if;
  end if;
  s.r := r;
  if q.op = 'r' then
    -- The lease expired; only the guard kept it.
    expired := e.expires_at <= s.now;
    a.verdict := case when e.fence is null then 'l' when expired then 'n' else 'f' end;
    perform leasehold._ended(c, e, least(e.expires_at, s.now), case when expired then 'expired'
      when e.fence is null and q.ending = 'released' then 'cancelled' else q.ending end, q.problem, q.details);
  else
    a.verdict := 'e';
    a.holders := jsonb_build_array(jsonb_build_object('holder', e.holder));
    perform leasehold._ended(c, e, s.now, 'evicted', 'evicted', q.details);
    a.hints := leasehold._hint(c, a.hints, e.channel, 'e ' || e.id);
  end if;
  s.a := a;
end $$;

-- Writes the resource if it changed, and returns it.
create function leasehold._store(r leasehold.resource, before leasehold.resource) returns leasehold.resource
language plpgsql volatile as $$
begin
  if r.has_entries and r.waiting = 0 and r.reader_base is null and r.used <= 0 then
    r.has_entries := exists (select from leasehold.entry x where x.namespace = r.namespace and x.name = r.name);
    if not r.has_entries then
      r.used := 0;
      r.next_end := 'infinity';
    end if;
  end if;
  if r is distinct from before then
    update leasehold.resource x set last_fence = r.last_fence, reader_base = r.reader_base, has_entries = r.has_entries, used = r.used,
      waiting = r.waiting, next_end = r.next_end, freed_at = r.freed_at, id = r.id, fence = r.fence, mode = r.mode,
      units = r.units, capacity = r.capacity, holder = r.holder, note = r.note, metadata = r.metadata, ttl_us = r.ttl_us,
      expires_at = r.expires_at, asked_at = r.asked_at, renewed_at = r.renewed_at, acquired_at = r.acquired_at,
      session = r.session, channel = r.channel
    where x.namespace = r.namespace and x.name = r.name;
  end if;
  return r;
end $$;

-- State::standing.
create function leasehold._standing(q leasehold.operation, s leasehold.step, out a leasehold.answer)
language plpgsql volatile as $$
declare
  wall bigint := leasehold._micros(s.now);
  r leasehold.resource := s.r;
  e leasehold.entry := s.e;
begin
  a := s.a;
  a.granted := a.granted + (q.op = 'a' and s.existed)::int;
  if a.verdict = 'b' then
    a.holders := leasehold._holders(r.namespace, r.name, s.now);
    a.waiting := r.waiting;
  end if;
  if q.op = 'n' and not s.existed then
    a.verdict := 'n';
  end if;
  if q.op not in ('a', 'n') or a.verdict is not null then
    return;
  end if;
  -- The second settling may have granted it: read it again.
  if e.fence is null and r.id = e.id then
    e := leasehold._inline_entry(r);
  elsif e.fence is null then
    select x.fence, x.acquired_at into e.fence, e.acquired_at from leasehold.entry x
    where x.id = e.id and x.namespace = e.namespace and x.name = e.name;
  end if;
  if e.fence is not null then
    a.verdict := 'g';
    a.fence := e.fence;
    a.acquired_us := leasehold._micros(e.acquired_at);
    return;
  end if;
  a.verdict := 'q';
  a.fence := r.last_fence;
  select count(*) filter (where x.fence is null), leasehold._micros(nullif(min(x.expires_at), 'infinity')) - wall,
    coalesce(bool_or(x.session is not null), false) or (r.id is not null and r.session is not null)
  into a.ahead, a.ask_again_us, a.behind_session
  from leasehold.entry x where x.namespace = r.namespace and x.name = r.name and x.seq < e.seq;
  if r.id is not null and r.expires_at <> 'infinity' then
    a.ask_again_us := least(a.ask_again_us, leasehold._micros(r.expires_at) - wall);
  end if;
  -- Nothing tells when a guarded transaction ends: the first waiter polls; its call also grants to those behind it.
  if s.guarded then
    a.ask_again_us := case when a.ahead = 0 then 100000 else greatest(a.ask_again_us, 1000000) end;
  end if;
  if a.ask_again_us < 1000 then
    a.ask_again_us := 1000;
  end if;
end $$;
