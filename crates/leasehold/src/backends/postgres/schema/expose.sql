-- Wrappers and views in the schema /*target*/ for callers that do not say a schema: psql, PostgREST, Supabase.
-- The functions have the caller's rights: leasehold.allow('app', 'lock') is what a caller needs, and what a dump that
-- leaves rights out does not restore.
-- A function or view with one of these names is replaced only if this role put it there. Everything else is left alone.
do $$
declare
  target oid := quote_ident((parse_ident('/*target*/x'))[1])::regnamespace;
  other text;
begin
  select o.what into other from (
    select 'function ' || p.oid::regprocedure as what from pg_proc p
    where p.pronamespace = target and p.proname in ('acquire_lock', 'acquire_lock_fenced', 'acquire_lock_wait', 'release_lock',
        'extend_lock', 'fence_of', 'guard', 'acquire', 'acquit')
      and (pg_get_userbyid(p.proowner) <> current_user
        or obj_description(p.oid, 'pg_proc') is distinct from 'The same as leasehold.' || p.proname || '.')
    union all
    select 'relation ' || c.oid::regclass from pg_class c
    where c.relnamespace = target and c.relname in ('distributed_locks', 'locks', 'released')
      and (pg_get_userbyid(c.relowner) <> current_user
        or obj_description(c.oid, 'pg_class') is distinct from 'The same as leasehold.' || c.relname || '.')) o limit 1;
  if other is not null then
    raise exception '% is there already and does not belong to this schema', other
      using errcode = 'LH001', hint = 'Rename or drop it, or expose the locks in another schema.';
  end if;
end $$;

create or replace function /*target*/acquire_lock(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_metadata jsonb default '{}'
) returns boolean language sql volatile as
$$ select leasehold.acquire_lock(p_lock_name, p_holder_id, p_ttl_seconds, p_metadata) $$;

create or replace function /*target*/acquire_lock_fenced(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_metadata jsonb default '{}'
) returns jsonb language sql volatile as
$$ select leasehold.acquire_lock_fenced(p_lock_name, p_holder_id, p_ttl_seconds, p_metadata) $$;

create or replace function /*target*/acquire_lock_wait(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_wait_seconds double precision default 10,
  p_metadata jsonb default '{}'
) returns boolean language sql volatile as
$$ select leasehold.acquire_lock_wait(p_lock_name, p_holder_id, p_ttl_seconds, p_wait_seconds, p_metadata) $$;

create or replace function /*target*/release_lock(p_lock_name text, p_holder_id text) returns boolean
language sql volatile as $$ select leasehold.release_lock(p_lock_name, p_holder_id) $$;

create or replace function /*target*/extend_lock(p_lock_name text, p_holder_id text, p_additional_seconds double precision)
returns boolean language sql volatile as
$$ select leasehold.extend_lock(p_lock_name, p_holder_id, p_additional_seconds) $$;

create or replace function /*target*/fence_of(p_lock_name text, p_holder_id text) returns bigint
language sql volatile as $$ select leasehold.fence_of(p_lock_name, p_holder_id) $$;

create or replace function /*target*/guard(p_name text, p_fence bigint, p_namespace text default 'default') returns void
language sql volatile as $$ select leasehold.guard(p_name, p_fence, p_namespace) $$;

create or replace function /*target*/acquire(x text) returns uuid
language sql volatile as $$ select leasehold.acquire(x) $$;

create or replace function /*target*/acquit(lock_id uuid, error_type text default null, error_details text default null)
returns boolean language sql volatile as $$ select leasehold.acquit(lock_id, error_type, error_details) $$;

create or replace view /*target*/distributed_locks as select * from leasehold.distributed_locks;
create or replace view /*target*/locks as select * from leasehold.locks;
create or replace view /*target*/released as select * from leasehold.released;

-- Views have their owner's rights, and default privileges of the schema may give them away: nobody has one that is new here.
do $$
declare
  granted record;
begin
  for granted in
    select c.oid::regclass as what, a.grantee from pg_class c, aclexplode(c.relacl) a
    where a.grantee <> c.relowner and obj_description(c.oid, 'pg_class') is null and c.oid in (
      '/*target*/distributed_locks'::regclass, '/*target*/locks'::regclass, '/*target*/released'::regclass)
  loop
    execute format('revoke all on %s from %s', granted.what,
      case granted.grantee when 0 then 'public' else granted.grantee::regrole::text end);
  end loop;
end $$;

comment on function /*target*/acquire_lock is 'The same as leasehold.acquire_lock.';
comment on function /*target*/acquire_lock_fenced is 'The same as leasehold.acquire_lock_fenced.';
comment on function /*target*/acquire_lock_wait is 'The same as leasehold.acquire_lock_wait.';
comment on function /*target*/release_lock is 'The same as leasehold.release_lock.';
comment on function /*target*/extend_lock is 'The same as leasehold.extend_lock.';
comment on function /*target*/fence_of is 'The same as leasehold.fence_of.';
comment on function /*target*/guard is 'The same as leasehold.guard.';
comment on function /*target*/acquire is 'The same as leasehold.acquire.';
comment on function /*target*/acquit is 'The same as leasehold.acquit.';
comment on view /*target*/distributed_locks is 'The same as leasehold.distributed_locks.';
comment on view /*target*/locks is 'The same as leasehold.locks.';
comment on view /*target*/released is 'The same as leasehold.released.';
