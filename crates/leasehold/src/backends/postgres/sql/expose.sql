-- Wrappers and views in the schema /*target*/ for callers that do not say a schema: psql, PostgREST, Supabase.
-- They have the owner's rights, so that a caller needs nothing but EXECUTE or SELECT on them:
--   grant execute on function acquire_lock, release_lock, extend_lock to app;
-- Nobody has these at first, whatever the schema's default privileges say; what was granted since is kept.
-- What has one of these names there and is not of this schema is left alone, and so is everything else.
do $$
declare
  target oid := quote_ident((parse_ident('/*target*/x'))[1])::regnamespace;
  other text;
begin
  select o.what into other from (
    select 'function ' || p.oid::regprocedure as what from pg_proc p
    where p.pronamespace = target and p.proname in ('acquire_lock', 'release_lock', 'extend_lock', 'acquire', 'acquit')
      and obj_description(p.oid, 'pg_proc') is distinct from 'The same as leasehold.' || p.proname || '.'
    union all
    select 'relation ' || c.oid::regclass from pg_class c
    where c.relnamespace = target and c.relname in ('distributed_locks', 'locks', 'released')
      and obj_description(c.oid, 'pg_class') is distinct from 'The same as leasehold.' || c.relname || '.') o limit 1;
  if other is not null then
    raise exception '% is there already and does not belong to this schema', other
      using errcode = 'LH001', hint = 'Rename or drop it, or expose the locks in another schema.';
  end if;
end $$;

create or replace function /*target*/acquire_lock(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_metadata jsonb default '{}'
) returns boolean language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.acquire_lock(p_lock_name, p_holder_id, p_ttl_seconds, p_metadata) $$;

create or replace function /*target*/release_lock(p_lock_name text, p_holder_id text) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.release_lock(p_lock_name, p_holder_id) $$;

create or replace function /*target*/extend_lock(p_lock_name text, p_holder_id text, p_additional_seconds double precision)
returns boolean language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.extend_lock(p_lock_name, p_holder_id, p_additional_seconds) $$;

create or replace function /*target*/acquire(x text) returns uuid
language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.acquire(x) $$;

create or replace function /*target*/acquit(lock_id uuid, error_type text default null, error_details text default null)
returns boolean language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.acquit(lock_id, error_type, error_details) $$;

create or replace view /*target*/distributed_locks as select * from leasehold.distributed_locks;
create or replace view /*target*/locks as select * from leasehold.locks;
create or replace view /*target*/released as select * from leasehold.released;

-- What was there before has its comment.
do $$
declare
  granted record;
begin
  for granted in
    select 'function ' || p.oid::regprocedure as what, a.grantee
    from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    where a.grantee <> p.proowner and obj_description(p.oid, 'pg_proc') is null and p.oid in (
      '/*target*/acquire_lock(text, text, double precision, jsonb)'::regprocedure, '/*target*/release_lock(text, text)'::regprocedure,
      '/*target*/extend_lock(text, text, double precision)'::regprocedure, '/*target*/acquire(text)'::regprocedure,
      '/*target*/acquit(uuid, text, text)'::regprocedure)
    union
    select c.oid::regclass::text, a.grantee from pg_class c, aclexplode(c.relacl) a
    where a.grantee <> c.relowner and obj_description(c.oid, 'pg_class') is null and c.oid in (
      '/*target*/distributed_locks'::regclass, '/*target*/locks'::regclass, '/*target*/released'::regclass)
  loop
    execute format('revoke all on %s from %s', granted.what,
      case granted.grantee when 0 then 'public' else granted.grantee::regrole::text end);
  end loop;
end $$;

comment on function /*target*/acquire_lock is 'The same as leasehold.acquire_lock.';
comment on function /*target*/release_lock is 'The same as leasehold.release_lock.';
comment on function /*target*/extend_lock is 'The same as leasehold.extend_lock.';
comment on function /*target*/acquire is 'The same as leasehold.acquire.';
comment on function /*target*/acquit is 'The same as leasehold.acquit.';
comment on view /*target*/distributed_locks is 'The same as leasehold.distributed_locks.';
comment on view /*target*/locks is 'The same as leasehold.locks.';
comment on view /*target*/released is 'The same as leasehold.released.';
