-- Wrappers and views in the schema /*target*/ for callers that do not say a schema: psql, PostgREST, Supabase.
-- The functions have the caller's rights: leasehold.allow('app', 'lock') is what a caller needs, and what a dump that
-- leaves rights out does not restore.
-- A function or view with one of these names is replaced only if this role put it there. Everything else is left alone.
do $$
declare
  target oid := quote_ident((parse_ident('/*target*/x'))[1])::regnamespace;
  functions name[] := '{acquire_lock, acquire_lock_fenced, acquire_lock_wait, release_lock, extend_lock, fence_of, guard, acquire,
    acquit}';
  other text;
  f record;
begin
  select o.what into other from (
    select 'function ' || p.oid::regprocedure as what from pg_proc p
    where p.pronamespace = target and p.proname = any (functions)
      and (pg_get_userbyid(p.proowner) <> current_user
        or obj_description(p.oid, 'pg_proc') is distinct from 'The same as leasehold.' || p.proname || '.')
    union all
    select 'relation ' || c.oid::regclass from pg_class c
    where c.relnamespace = target and c.relname in ('distributed_locks', 'locks', 'released')
      and (pg_get_userbyid(c.relowner) <> current_user
        or obj_description(c.oid, 'pg_class') is distinct from 'The same as leasehold.' || c.relname || '.')) o limit 1;
  if other is not null then
    raise exception '% is there already and does not belong to this schema', other
      using errcode = 'LH007', hint = 'Rename or drop it, or expose the locks in another schema.';
  end if;
  for f in
    select p.proname as name, pg_get_function_arguments(p.oid) as arguments, pg_get_function_result(p.oid) as result,
      array_to_string(p.proargnames, ', ') as passed
    from pg_proc p
    where p.pronamespace = (select k.relnamespace from pg_class k where k.oid = 'leasehold.resource'::regclass)
      and p.proname = any (functions)
  loop
    execute format('create or replace function /*target*/%I(%s) returns %s language sql volatile as %L', f.name, f.arguments,
      f.result, format('select leasehold.%I(%s)', f.name, f.passed));
    execute format('comment on function /*target*/%I is %L', f.name, 'The same as leasehold.' || f.name || '.');
  end loop;
end $$;

create or replace view /*target*/distributed_locks as select * from leasehold.distributed_locks;
create or replace view /*target*/locks as select * from leasehold.locks;
create or replace view /*target*/released as select * from leasehold.released;

-- Views run with their owner's rights: revoke what default privileges of the schema gave to others on the new ones.
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

comment on view /*target*/distributed_locks is 'The same as leasehold.distributed_locks.';
comment on view /*target*/locks is 'The same as leasehold.locks.';
comment on view /*target*/released is 'The same as leasehold.released.';
