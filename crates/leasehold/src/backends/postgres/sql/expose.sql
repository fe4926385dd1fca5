-- Wrappers and views in the schema /*target*/ for callers that do not say a schema: psql, PostgREST, Supabase.
-- They have the owner's rights, so that a caller needs nothing but EXECUTE or SELECT on them:
--   grant execute on function acquire_lock, release_lock, extend_lock to app;
-- Nobody has these at first, whatever the schema's default privileges say; what was granted since is kept.
select set_config('leasehold_expose.known', coalesce(string_agg(known.oid::text, ' '), ''), true) from (
  select to_regprocedure(f)::oid from unnest(array['/*target*/acquire_lock(text, text, double precision, jsonb)',
    '/*target*/release_lock(text, text)', '/*target*/extend_lock(text, text, double precision)', '/*target*/acquire(text)',
    '/*target*/acquit(uuid, text, text)']) f
  union all
  select to_regclass(v)::oid from unnest(array['/*target*/distributed_locks', '/*target*/locks', '/*target*/released']) v
) known(oid);
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

do $$
declare
  known text[] := string_to_array(current_setting('leasehold_expose.known'), ' ');
  granted record;
begin
  for granted in
    select 'function ' || p.oid::regprocedure as what, a.grantee
    from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    where a.grantee <> p.proowner and p.oid::text <> all (known) and p.oid in (
      '/*target*/acquire_lock(text, text, double precision, jsonb)'::regprocedure, '/*target*/release_lock(text, text)'::regprocedure,
      '/*target*/extend_lock(text, text, double precision)'::regprocedure, '/*target*/acquire(text)'::regprocedure,
      '/*target*/acquit(uuid, text, text)'::regprocedure)
    union
    select c.oid::regclass::text, a.grantee from pg_class c, aclexplode(c.relacl) a
    where a.grantee <> c.relowner and c.oid::text <> all (known) and c.oid in (
      '/*target*/distributed_locks'::regclass, '/*target*/locks'::regclass, '/*target*/released'::regclass)
  loop
    execute format('revoke all on %s from %s', granted.what,
      case granted.grantee when 0 then 'public' else granted.grantee::regrole::text end);
  end loop;
end $$;
