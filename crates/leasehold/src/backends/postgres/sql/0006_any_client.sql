-- What any client may call by name, psql and PostgREST included: locks with a ttl, in the
-- namespace `default`, contending with the library's. Three functions that answer yes or no.

-- The lease of a holder that has no other id than its label: never that of a library's lease.
-- Immutable throughout (`text || int` is not), or it would be parsed again in every call instead of inlined.
create function leasehold._id_of(p_name text, p_holder text) returns uuid
language sql immutable as $$ select md5('sql/' || length(p_name)::text || '/' || p_name || '/' || p_holder)::uuid $$;

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
  if p_lock_name is null or p_lock_name = '' or octet_length(p_lock_name) > 512 or p_lock_name ~ '[[:cntrl:]]' then
    raise exception 'a lock name needs 1 to 512 bytes and no control characters' using errcode = '22023';
  end if;
  if p_holder_id is null or p_holder_id = '' or octet_length(p_holder_id) > 256 or p_holder_id ~ '[[:cntrl:]]' then
    raise exception 'a holder id needs 1 to 256 bytes and no control characters' using errcode = '22023';
  end if;
  if p_ttl_seconds is null or p_ttl_seconds <= 0 or p_ttl_seconds > 2592000 then
    raise exception 'a ttl of % seconds cannot be used', coalesce(p_ttl_seconds::text, 'null')
      using errcode = '22023', hint = 'It must be above 0 and at most 30 days; 10 to 60 seconds suit most work.';
  end if;
  raise exception 'metadata must be a JSON object' using errcode = '22023';
end $$;

-- Lets the first in line ask again: who is before it ends sooner than it was told.
create function leasehold._hurry(p_namespace text, p_name text) returns void
language plpgsql volatile as $$
begin
  perform pg_notify(e.channel, 'c ' || p_name) from (
    select x.channel from leasehold.entry x
    where x.namespace = p_namespace and x.name = p_name and x.fence is null order by x.seq limit 1) e
  where e.channel is not null;
end $$;

-- Takes the lock for so many seconds, or says that another has it. Never waits in a queue, and so is always alone in
-- the row of its name. The holder that has it already keeps its fence and gets new times, be they shorter, and metadata.
create function leasehold.acquire_lock(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_metadata jsonb default '{}'
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  a leasehold.answer;
  mine uuid;
  t timestamptz;
  ended timestamptz;
begin
  -- One expression: each is prepared anew in every transaction, which costs more than the look at the row.
  if (current_setting('transaction_isolation') = 'read committed' and octet_length(p_lock_name) between 1 and 512
    and octet_length(p_holder_id) between 1 and 256 and p_lock_name !~ '[[:cntrl:]]' and p_holder_id !~ '[[:cntrl:]]'
    and p_ttl_seconds > 0 and p_ttl_seconds <= 2592000 and jsonb_typeof(coalesce(p_metadata, '{}')) = 'object') is not true then
    perform leasehold._refuse_arguments(p_lock_name, p_holder_id, p_ttl_seconds);
  end if;
  perform 1 from leasehold.resource r
  where r.namespace = 'default' and r.name = p_lock_name and r.mode in ('x', 's') and r.expires_at > clock_timestamp()
    and r.id <> leasehold._id_of(p_lock_name, p_holder_id) and not leasehold._dead(r.session);
  if found then
    return false;
  end if;
  mine := leasehold._id_of(p_lock_name, p_holder_id);
  a := leasehold._acquire('default', null, null, 'a', leasehold._watched('default'), p_lock_name, mine, 'x',
    2147483647, 2147483647, greatest(1, p_ttl_seconds * 1000000)::bigint, true, false, p_holder_id, null,
    coalesce(p_metadata, '{}'), null);
  if a.verdict = 's' then
    perform leasehold._refuse_shape(p_lock_name, a);
  end if;
  if a.verdict <> 'g' then
    return false;
  end if;
  -- Counted by the rule: it may have been held before.
  if a.granted is not null then
    t := clock_timestamp();
    select r.expires_at into ended from leasehold.resource r
    where r.namespace = 'default' and r.name = p_lock_name and r.id = mine;
    if t + p_ttl_seconds * interval '1 s' < ended then
      perform leasehold._hurry('default', p_lock_name);
    end if;
    update leasehold.resource r set acquired_at = t, renewed_at = t, expires_at = t + p_ttl_seconds * interval '1 s',
      ttl_us = greatest(1, p_ttl_seconds * 1000000)::bigint, metadata = coalesce(p_metadata, '{}')
    where r.namespace = 'default' and r.name = p_lock_name and r.id = mine;
  end if;
  return true;
end $$;

-- Gives the lock back: true only if that holder's lease was live and is ended now.
create function leasehold.release_lock(p_lock_name text, p_holder_id text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  a leasehold.answer;
  mine uuid := leasehold._id_of(p_lock_name, p_holder_id);
begin
  perform leasehold._check_isolation();
  -- What is another's is not locked: the caller's transaction may stay open.
  perform 1 from leasehold.resource r where r.namespace = 'default' and r.name = p_lock_name and r.id <> mine;
  if found then
    return false;
  end if;
  a := leasehold._release('default', null, 'a', leasehold._watched('default'), p_lock_name, mine,
    'released', null, null);
  return a.verdict = 'f';
end $$;

-- Moves the end to so many seconds from now: false if it had ended before or is another's.
create function leasehold.extend_lock(p_lock_name text, p_holder_id text, p_additional_seconds double precision)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  mine uuid := leasehold._id_of(p_lock_name, p_holder_id);
  length interval := p_additional_seconds * interval '1 s';
  ended timestamptz;
begin
  perform leasehold._check_isolation();
  if p_additional_seconds is null or p_additional_seconds <= 0 or p_additional_seconds > 2592000 then
    raise exception 'a lease cannot be extended by % seconds', coalesce(p_additional_seconds::text, 'null')
      using errcode = '22023', hint = 'It must be above 0 and at most 30 days.';
  end if;
  select r.expires_at into ended from leasehold.resource r
  where r.namespace = 'default' and r.name = p_lock_name and r.id = mine and r.expires_at > clock_timestamp()
  for no key update;
  if not found then
    return false;
  end if;
  update leasehold.resource r set renewed_at = clock_timestamp(), expires_at = clock_timestamp() + length,
    ttl_us = greatest(1, p_additional_seconds * 1000000)::bigint
  where r.namespace = 'default' and r.name = p_lock_name and r.id = mine;
  if clock_timestamp() + length < ended then
    perform leasehold._hurry('default', p_lock_name);
  end if;
  return true;
end $$;

-- The fence of that holder's live lease, to be kept with what is written, or for guard(); null if it has none.
create function leasehold.fence_of(p_lock_name text, p_holder_id text) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  mine uuid := leasehold._id_of(p_lock_name, p_holder_id);
begin
  return (select r.fence from leasehold.resource r
    where r.namespace = 'default' and r.name = p_lock_name and r.id = mine and r.expires_at > clock_timestamp());
end $$;

-- Who holds what, in every mode; those who wait are not in it.
create view leasehold.distributed_locks as
  select r.name as lock_name, r.holder as holder_id, r.acquired_at, r.expires_at, r.metadata
  from leasehold.resource r where r.namespace = 'default' and r.id is not null and r.expires_at > clock_timestamp()
    and (r.session is null or not leasehold._lost(r.session))
  union all
  select e.name, e.holder, e.acquired_at, e.expires_at, e.metadata
  from leasehold.entry e where e.namespace = 'default' and e.fence is not null and e.expires_at > clock_timestamp()
    and (e.session is null or not leasehold._lost(e.session));

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
  perform pg_advisory_xact_lock_shared(leasehold._barrier(p_namespace, p_name));
  perform 1 from leasehold.resource r
  where r.namespace = p_namespace and r.name = p_name and r.id is not null and r.fence = p_fence
    and r.expires_at > clock_timestamp() and not leasehold._dead(r.session);
  if found then
    return;
  end if;
  -- Keeps one of several holders from being dropped as expired.
  perform pg_advisory_xact_lock_shared(leasehold._pin(p_fence));
  perform 1 from leasehold.entry e
  where e.namespace = p_namespace and e.name = p_name and e.fence = p_fence and e.expires_at > clock_timestamp()
    and not leasehold._dead(e.session);
  if not found then
    raise exception '% is not held under fence %', p_name, p_fence
      using errcode = 'LH004', hint = format('The lease ended, or it is not in the namespace %s; roll back and stop the work it protected.', p_namespace);
  end if;
end $$;
