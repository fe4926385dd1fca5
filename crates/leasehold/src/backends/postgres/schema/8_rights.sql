-- Who may do what. Nobody but the owner until allow() is called: the functions run with
-- the owner's rights, so an application needs them and none of the tables.

revoke all on all functions in schema leasehold from public;
revoke all on all tables in schema leasehold from public;
-- Views call it with the rights of whoever looks; it says whether a connection ended, and nothing else.
grant execute on function leasehold._session_dead_definer(int) to public;

-- What a role may do: `all` that the library does, in every namespace; `lock`, the functions for any client; `read`, the
-- views, lists, history and events. Functions of later migrations are granted there.
create function leasehold.allow(p_role name, p_what text default 'all') returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  lock name[] := '{acquire_lock, acquire_lock_fenced, acquire_lock_wait, release_lock, extend_lock, fence_of, guard, acquire,
    acquit, advisory_key}';
  read name[] := '{version, list_leases, list_ended, list_runs, watch}';
  f regprocedure;
begin
  if p_what is null or p_what not in ('all', 'lock', 'read') then
    raise exception 'a role can be allowed all, lock or read, not %', coalesce(p_what, 'null') using errcode = '22023';
  end if;
  -- A restore without rights leaves all functions open to whoever may use the schema.
  revoke all on all functions in schema leasehold from public;
  grant execute on function leasehold._session_dead_definer(int) to public;
  execute format('grant usage on schema leasehold to %I', p_role);
  for f in
    select p.oid::regprocedure from pg_proc p
    where p.pronamespace = (select k.relnamespace from pg_class k where k.oid = 'leasehold.resource'::regclass)
      and case p_what when 'lock' then p.proname = any (lock) when 'read' then p.proname = any (read)
        else p.proname not like '\_%' and p.proname not in ('allow', 'record') end
  loop
    execute format('grant execute on function %s to %I', f, p_role);
  end loop;
  execute format('grant select on leasehold.distributed_locks, leasehold.locks, leasehold.released to %I', p_role);
end $$;
revoke all on function leasehold.allow(name, text) from public;
