-- What any client may call by name, psql and PostgREST included: locks with a ttl, in the
-- namespace `default`, contending with the library's.

-- All leases of acquire_lock() share this id; the holder distinguishes them. Computing an id for each name and holder would
-- cost a call as much as all its other checks.
create function leasehold._sql_id() returns uuid
language sql immutable as $$ select '6c656173-6568-6f6c-6420-2073716c2020'::uuid $$;

-- Which endings SQL callers and upkeep record: a all, p problems, o off. See record().
create function leasehold._history() returns "char" language sql immutable as $$ select 'a'::"char" $$;

-- Chooses what the functions for any client record: `all`, `problems` or `off`. A constant costs them nothing.
create function leasehold.record(p_history text) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_history is null or p_history not in ('all', 'problems', 'off') then
    raise exception 'history can be all, problems or off, not %', coalesce(p_history, 'null') using errcode = '22023';
  end if;
  execute format('create or replace function leasehold._history() returns "char" language sql immutable as %L',
    format('select %L::"char"', left(p_history, 1)));
end $$;

create function leasehold._refuse_shape(p_name text, a leasehold.answer) returns void
language plpgsql stable as $$
begin
  raise exception '% is in use as %, asked for as a lock', p_name,
    case leasehold._family(a.mode) when 'p' then 'a semaphore of ' || a.capacity when 'e' then 'an election' else 'a lock' end
    using errcode = 'LH003', hint = 'Use one shape, or another name.';
end $$;

-- Says what is wrong with what acquire_lock() was given.
create function leasehold._refuse_arguments(p_lock_name text, p_holder_id text, p_ttl_seconds double precision) returns void
language plpgsql stable as $$
begin
  perform leasehold._check_isolation();
  if p_lock_name is null or p_lock_name = '' or octet_length(convert_to(p_lock_name, 'UTF8')) > 512 or p_lock_name ~ '[[:cntrl:]]' then
    raise exception 'a lock name needs 1 to 512 bytes and no control characters' using errcode = '22023';
  end if;
  if p_holder_id is null or p_holder_id = '' or octet_length(convert_to(p_holder_id, 'UTF8')) > 256 or p_holder_id ~ '[[:cntrl:]]' then
    raise exception 'a holder id needs 1 to 256 bytes and no control characters' using errcode = '22023';
  end if;
  if p_ttl_seconds is null or p_ttl_seconds <= 0 or p_ttl_seconds > 2592000 then
    raise exception 'a ttl of % seconds cannot be used', coalesce(p_ttl_seconds::text, 'null')
      using errcode = '22023', hint = 'It must be above 0 and at most 30 days; 10 to 60 seconds suit most work.';
  end if;
  raise exception 'metadata must be a JSON object' using errcode = '22023';
end $$;

-- Wakes the first waiter: the holder's expiry moved earlier.
create function leasehold._wake_first_waiter(p_namespace text, p_name text) returns void
language plpgsql volatile as $$
begin
  perform pg_notify(e.channel, 'c ' || p_name) from (
    select x.channel from leasehold.entry x
    where x.namespace = p_namespace and x.name = p_name and x.fence is null order by x.seq limit 1) e
  where e.channel is not null;
end $$;

-- Takes the lock for p_ttl_seconds: true, or false while another has it. Never waits in a queue, and so is always stored
-- inline. A plain row is taken by one update. Each term of an expression costs a call about 500 instructions, also one that is
-- not reached, each column that is set some 2,000, and each statement more than 20,000.
create function leasehold.acquire_lock(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_metadata jsonb default '{}'
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  t timestamptz := clock_timestamp();
begin
  -- What fails here is examined by _acquire_lock_contended(), such as a long holder id.
  if p_holder_id ~ '^[^[:cntrl:]]+$' and octet_length(p_holder_id) <= 85 and p_ttl_seconds > 0 and p_ttl_seconds <= 2592000
    and p_metadata @> '{}' and current_setting('transaction_isolation') = 'read committed' then
    update leasehold.resource x set id = leasehold._sql_id(), holder = p_holder_id, metadata = p_metadata,
      expires_at = t + p_ttl_seconds * interval '1 s', acquired_at = greatest(t, x.freed_at),
      fence = greatest(x.fence + 1, leasehold._micros(t))
    where x.namespace = 'default' and x.name = p_lock_name and x.id is null and x.last_fence is null
      and pg_sequence_last_value('leasehold.watched') is null
      -- As in _may_grant_free(): a name that was free before this transaction needs no lock that stays until commit.
      and x.freed_at < transaction_timestamp() and leasehold._not_guarded('default', p_lock_name);
    if found and clock_timestamp() < t + interval '10 ms' then
      return true;
    end if;
  end if;
  return leasehold._acquire_lock_contended(p_lock_name, p_holder_id, p_ttl_seconds, p_metadata, found);
end $$;

-- Slow path of acquire_lock(), for a name that is new or not free. The holder that has it already keeps its fence and gets
-- new metadata and a new expiry, even an earlier one.
create function leasehold._acquire_lock_contended(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision, p_metadata jsonb, p_late boolean
) returns boolean
language plpgsql volatile set seq_page_cost = 100 as $$
declare
  a leasehold.answer;
  t timestamptz := clock_timestamp();
  ended timestamptz;
begin
  p_metadata := coalesce(p_metadata, '{}');
  if p_late then
    -- The row was waited for: take it with new times.
    update leasehold.resource x set id = null where x.namespace = 'default' and x.name = p_lock_name;
  end if;
  -- In encodings other than UTF-8, a character takes up to three times as many bytes there.
  if (octet_length(convert_to(p_lock_name, 'UTF8')) between 1 and 512 and p_lock_name !~ '[[:cntrl:]]'
      and octet_length(convert_to(p_holder_id, 'UTF8')) between 1 and 256 and p_holder_id !~ '[[:cntrl:]]'
      and p_ttl_seconds > 0 and p_ttl_seconds <= 2592000 and p_metadata @> '{}'
      and current_setting('transaction_isolation') = 'read committed') is not true then
    perform leasehold._refuse_arguments(p_lock_name, p_holder_id, p_ttl_seconds);
  end if;
  perform 1 from leasehold.resource r
  where r.namespace = 'default' and r.name = p_lock_name and r.mode in ('x', 's') and r.expires_at > t
    and r.id is not null and (r.id <> leasehold._sql_id() or r.holder <> p_holder_id) and not leasehold._session_dead(r.session);
  if found then
    return false;
  end if;
  if random() < 0.002 then
    perform leasehold._maintain_sample(t);
  end if;
  a := leasehold._acquire('default', 'sql', null, leasehold._history(), leasehold._watched('default'), p_lock_name,
    leasehold._sql_id(), 'x', 2147483647, 2147483647, greatest(1, p_ttl_seconds * 1000000)::bigint, -1, false, p_holder_id, null,
    p_metadata, null);
  if a.verdict = 's' then
    perform leasehold._refuse_shape(p_lock_name, a);
  end if;
  if a.verdict <> 'g' then
    return false;
  end if;
  -- The row becomes plain. It may be a renewal by the same holder.
  t := clock_timestamp();
  select r.expires_at into ended from leasehold.resource r where r.namespace = 'default' and r.name = p_lock_name;
  if t + p_ttl_seconds * interval '1 s' < ended then
    perform leasehold._wake_first_waiter('default', p_lock_name);
  end if;
  update leasehold.resource r set acquired_at = greatest(t, r.freed_at), expires_at = t + p_ttl_seconds * interval '1 s',
    metadata = p_metadata, last_fence = case when r.has_entries or r.last_fence > r.fence then r.last_fence end, ttl_us = null, asked_at = null,
    renewed_at = null
  where r.namespace = 'default' and r.name = p_lock_name;
  return true;
end $$;

-- The same, with all there is to know: {"acquired": true, "fence": ..., "expires_at": ..., "holder": ...}, of this holder's lease
-- or of the one in its way.
create function leasehold.acquire_lock_fenced(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_metadata jsonb default '{}'
) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
set seq_page_cost = 100 as $$
declare
  taken boolean := leasehold.acquire_lock(p_lock_name, p_holder_id, p_ttl_seconds, p_metadata);
begin
  return jsonb_build_object('acquired', taken) || coalesce((
    select jsonb_build_object('fence', h.fence, 'holder', h.holder, 'expires_at', nullif(h.expires_at, 'infinity'))
    from leasehold._lease h where h.namespace = 'default' and h.name = p_lock_name and h.fence is not null
    order by h.seq limit 1), '{"fence": null, "holder": null, "expires_at": null}');
end $$;

-- The same, asking again for so many seconds, 30 at most, with growing pauses. It is not queued: the library's waiters, which
-- are, come first. Holds a connection and a snapshot meanwhile.
create function leasehold.acquire_lock_wait(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_wait_seconds double precision default 10,
  p_metadata jsonb default '{}'
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
set seq_page_cost = 100 as $$
declare
  pause double precision := 0.01;
  tries_until timestamptz;
begin
  if p_wait_seconds is null or p_wait_seconds < 0 or p_wait_seconds > 30 then
    raise exception 'a wait of % seconds cannot be used', coalesce(p_wait_seconds::text, 'null')
      using errcode = '22023', hint = 'It must be 0 to 30 seconds; ask again to wait longer.';
  end if;
  tries_until := clock_timestamp() + p_wait_seconds * interval '1 s';
  loop
    -- A try that fails may have granted the lock to a waiter, who would learn of it when this transaction ends: it is undone.
    begin
      if leasehold.acquire_lock(p_lock_name, p_holder_id, p_ttl_seconds, p_metadata) then
        return true;
      end if;
      raise exception using errcode = 'LH006', message = 'busy';
    exception when sqlstate 'LH006' then
      if clock_timestamp() >= tries_until then
        return false;
      end if;
    end;
    perform pg_sleep(least(pause * (0.5 + random()), extract(epoch from tries_until - clock_timestamp())));
    pause := least(pause * 1.5, 0.5);
  end loop;
end $$;

-- Gives the lock back: true only if that holder's lease was live and is ended now. A plain row takes one statement, which
-- also writes the history if all endings are kept: a second one would cost half as much again.
create function leasehold.release_lock(p_lock_name text, p_holder_id text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  t timestamptz := clock_timestamp();
begin
  if leasehold._history() = 'a' then
    with x as (
      update leasehold.resource x set id = null, freed_at = greatest(t, x.acquired_at)
      where x.namespace = 'default' and x.name = p_lock_name and x.id = leasehold._sql_id() and x.holder = p_holder_id
        and x.expires_at > t and leasehold._releases_plainly(x.last_fence)
      returning x.metadata, x.fence, x.acquired_at, x.freed_at)
    insert into leasehold.ended
    select leasehold._sql_id(), 'default', p_lock_name, 'x', 2147483647, 2147483647, p_holder_id, null, x.metadata, x.fence,
      x.acquired_at, x.acquired_at, x.freed_at, 'released'
    from x;
  else
    update leasehold.resource x set id = null, freed_at = greatest(t, x.acquired_at)
    where x.namespace = 'default' and x.name = p_lock_name and x.id = leasehold._sql_id() and x.holder = p_holder_id
      and x.expires_at > t and leasehold._releases_plainly(x.last_fence);
  end if;
  if found and clock_timestamp() < t + interval '10 ms' and random() > 0.002 then
    return found;
  end if;
  return leasehold._release_lock_contended(p_lock_name, p_holder_id, case when found then t end);
end $$;

-- Whether release_lock() may end the holder of this row, in this transaction, by one statement: the row is plain, and
-- nobody watches events.
create function leasehold._releases_plainly(p_last_fence bigint) returns boolean
language sql volatile as $$
  select p_last_fence is null
    and case when pg_sequence_last_value('leasehold.watched') is null then current_setting('transaction_isolation') = 'read committed' end
$$;

-- Slow path of release_lock(). A release that waited for its row ended it now, or at its expiry if earlier; one that did not
-- wait does a bit of upkeep.
create function leasehold._release_lock_contended(p_lock_name text, p_holder_id text, p_released_at timestamptz) returns boolean
language plpgsql volatile set seq_page_cost = 100 as $$
declare
  t timestamptz := clock_timestamp();
  r leasehold.resource;
  held uuid;
begin
  if t < p_released_at + interval '10 ms' then
    perform leasehold._maintain_sample(t);
    return true;
  elsif p_released_at is not null then
    update leasehold.resource x set freed_at = greatest(t, x.acquired_at) where x.namespace = 'default' and x.name = p_lock_name
    returning * into r;
    r.id := leasehold._sql_id();
    -- It was recorded with the time before the wait.
    delete from leasehold.ended h
    where h.namespace = 'default' and h.name = p_lock_name and h.ended_at >= r.acquired_at and h.fence = r.fence;
    perform leasehold._ended(row('default', null, null, leasehold._history(), false), leasehold._inline_entry(r),
      least(r.expires_at, r.freed_at), case when r.expires_at <= t then 'expired' else 'released' end, null, null);
    return r.expires_at > t;
  end if;
  perform leasehold._check_isolation();
  -- Waits for our own uncommitted acquire. Once the row is locked, no other holder gets the same id there.
  select x.id into held from leasehold.resource x
  where x.namespace = 'default' and x.name = p_lock_name
    and (x.id is null or x.id = leasehold._sql_id() and x.holder = p_holder_id)
  for no key update;
  return held is not null and (leasehold._release('default', null, leasehold._history(), leasehold._watched('default'), p_lock_name,
    leasehold._sql_id(), 'released', null, null)).verdict = 'f';
end $$;

-- Moves the end to so many seconds from now: false if it had ended before or is another's.
create function leasehold.extend_lock(p_lock_name text, p_holder_id text, p_additional_seconds double precision)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
set seq_page_cost = 100 as $$
declare
  t timestamptz;
  ended timestamptz;
begin
  if current_setting('transaction_isolation') <> 'read committed' then perform leasehold._check_isolation(); end if;
  if p_additional_seconds is null or p_additional_seconds <= 0 or p_additional_seconds > 2592000 then
    raise exception 'a lease cannot be extended by % seconds', coalesce(p_additional_seconds::text, 'null')
      using errcode = '22023', hint = 'It must be above 0 and at most 30 days.';
  end if;
  select r.expires_at into ended from leasehold.resource r
  where r.namespace = 'default' and r.name = p_lock_name and r.id = leasehold._sql_id() and r.holder = p_holder_id
  for no key update;
  -- Read now: the row may have been waited for.
  t := clock_timestamp();
  if ended is null or ended <= t then
    return false;
  end if;
  update leasehold.resource r set renewed_at = t, expires_at = t + p_additional_seconds * interval '1 s',
    ttl_us = greatest(1, p_additional_seconds * 1000000)::bigint, last_fence = greatest(r.last_fence, r.fence)
  where r.namespace = 'default' and r.name = p_lock_name;
  if t + p_additional_seconds * interval '1 s' < ended then
    perform leasehold._wake_first_waiter('default', p_lock_name);
  end if;
  return true;
end $$;

-- The fence of that holder's live lease, to be stored with what is written, or for guard(); null if it has none.
-- Volatile: it must see what acquire_lock() wrote in the same statement.
create function leasehold.fence_of(p_lock_name text, p_holder_id text) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
set seq_page_cost = 100 as $$
begin
  return (select r.fence from leasehold.resource r
    where r.namespace = 'default' and r.name = p_lock_name and r.id = leasehold._sql_id() and r.holder = p_holder_id
      and r.expires_at > clock_timestamp());
end $$;

-- Who holds what, in every mode; those who wait are not in it.
create view leasehold.distributed_locks as
  select l.name as lock_name, l.holder as holder_id, l.acquired_at, l.expires_at, l.metadata
  from leasehold._lease l where l.namespace = 'default' and l.fence is not null and l.expires_at > clock_timestamp()
    and (l.session is null or not leasehold._session_dead_definer(l.session));

-- The key of an advisory lock on this name: the first 15 hex digits of the SHA-256 of its UTF-8.
create function leasehold.advisory_key(name text) returns bigint
language sql immutable as $$
  select ('x0' || left(encode(sha256(convert_to(name, 'UTF8')), 'hex'), 15))::bit(64)::bigint
$$;

-- Inside the caller's own transaction: raises unless `p_fence` holds `p_name` now, and keeps it so
-- until the transaction ends, even past the lease's end. Renewals go through; a grant to another does not.
create function leasehold.guard(p_name text, p_fence bigint, p_namespace text default 'default') returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
begin
  perform leasehold._check_isolation();
  perform pg_advisory_xact_lock_shared(leasehold._guard_lock_class(), leasehold._guard_lock(p_namespace, p_name));
  perform 1 from leasehold.resource r
  where r.namespace = p_namespace and r.name = p_name and r.id is not null and r.fence = p_fence
    and r.expires_at > clock_timestamp() and not leasehold._session_dead(r.session);
  if found then
    return;
  end if;
  -- Keeps one of several holders from being dropped as expired.
  perform pg_advisory_xact_lock_shared(leasehold._holder_guard_lock(p_fence));
  perform 1 from leasehold.entry e
  where e.namespace = p_namespace and e.name = p_name and e.fence = p_fence and e.expires_at > clock_timestamp()
    and not leasehold._session_dead(e.session);
  if not found then
    raise exception '% is not held under fence %', p_name, p_fence
      using errcode = 'LH004', hint = format('The lease ended, or it is not in the namespace %s; roll back and stop the work it protected.', p_namespace);
  end if;
end $$;
