-- Locks that live as long as the calling connection: no expiry to guess. What ends without
-- acquit() is recorded as disconnected; acquit() also records what went wrong.

-- Opens a session on this connection, for leases to be bound to; returns its id. The library calls it, too.
create function leasehold.open_session(p_client text) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  -- Session locks survive a rollback: reuse one whose row was rolled back.
  opened int := leasehold._own_session();
begin
  if opened is null then
    -- Ids wrap around: skip those whose session is alive.
    loop
      opened := nextval('leasehold.session_id');
      exit when pg_try_advisory_lock(leasehold._session_lock_class(), opened);
    end loop;
  end if;
  insert into leasehold.session values (opened, pg_backend_pid(), clock_timestamp(), p_client)
  on conflict (id) do update set pid = excluded.pid, opened_at = excluded.opened_at, client = excluded.client;
  return opened;
end $$;

-- Takes the lock or raises; returns the id that acquit() wants.
create function leasehold.acquire(x text) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  own int := leasehold._own_session();
  c leasehold.caller;
  a leasehold.answer;
  made uuid := gen_random_uuid();
begin
  perform leasehold._check_isolation();
  if x is null or x = '' or octet_length(convert_to(x, 'UTF8')) > 512 or x ~ '[[:cntrl:]]' then
    raise exception 'a lock name needs 1 to 512 bytes and no control characters' using errcode = '22023';
  end if;
  if own is null or not exists (select from leasehold.session s where s.id = own and s.pid = pg_backend_pid()) then
    own := leasehold.open_session(session_user || ' ' || coalesce(host(inet_client_addr()), 'local'));
  end if;
  c := row('default', null, own, leasehold._history(), leasehold._watched('default'));
  a := leasehold._operate(c, row('a', x, made, 'x', 2147483647, 2147483647, 30000000, -1, true,
    left(session_user || ':' || pg_backend_pid(), 256), null, '{}', null, null, null, null)::leasehold.operation);
  if a.verdict = 's' then
    perform leasehold._refuse_shape(x, a);
  elsif a.verdict <> 'g' then
    raise exception '% is held by %', x, coalesce(a.holders -> 0 ->> 'holder', 'another')
      using errcode = 'LH005', hint = 'Try again later, or look at the view distributed_locks.';
  end if;
  insert into leasehold.session_lease values (made, x, own);
  return made;
end $$;

-- Gives the lock back; with an error type it is recorded as failed. False if it had ended before.
create function leasehold.acquit(lock_id uuid, error_type text default null, error_details text default null)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  a leasehold.answer;
  named text;
begin
  perform leasehold._check_isolation();
  delete from leasehold.session_lease l where l.id = lock_id returning l.name into named;
  if not found then
    return false;
  end if;
  a := leasehold._operate(row('default', null, null, leasehold._history(), leasehold._watched('default')),
    row('r', named, lock_id, null, null, null, null, null, null, null, null, null, null,
      case when error_type is null then 'released' else 'failed' end, error_type, error_details)::leasehold.operation);
  return a.verdict = 'f';
end $$;

-- What is held by a connection that lives.
create view leasehold.locks as
  select h.id, h.name as named, s.pid, h.acquired_at as ins
  from leasehold._lease h join leasehold.session s on s.id = h.session
  where h.namespace = 'default' and h.fence is not null and not leasehold._session_dead_definer(h.session);

-- What was held and ended, and what is left of connections that died.
create view leasehold.released as
  select h.id, h.name as named, h.acquired_at as locked, h.ended_at as released,
    case h.ending when 'released' then null when 'failed' then h.problem else h.ending end as problem, h.details
  from leasehold.ended h where h.namespace = 'default' and h.acquired_at is not null
  union all
  select h.id, h.name, h.acquired_at, null, 'disconnected', null from leasehold._lease h
  where h.namespace = 'default' and h.fence is not null and h.session is not null and leasehold._session_dead_definer(h.session);
