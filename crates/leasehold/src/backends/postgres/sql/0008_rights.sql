-- Who may do what. Nobody but the owner until allow() is called: the functions run with
-- the owner's rights, so an application needs them and none of the tables.

revoke all on all functions in schema leasehold from public;
revoke all on all tables in schema leasehold from public;
-- Views call it with the rights of whoever looks; it tells whether a connection ended, and nothing else.
grant execute on function leasehold._lost(int) to public;

-- Lets a role lock, look and evict, in every namespace, and nothing else. Functions of later migrations are granted there.
create function leasehold.allow(p_role name) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  f regprocedure;
begin
  execute format('grant usage on schema leasehold to %I', p_role);
  for f in
    select p.oid::regprocedure from pg_proc p
    where p.pronamespace = (select k.relnamespace from pg_class k where k.oid = 'leasehold.resource'::regclass)
      and p.proname not like '\_%' and p.proname <> 'allow'
  loop
    execute format('grant execute on function %s to %I', f, p_role);
  end loop;
  execute format('grant select on leasehold.distributed_locks, leasehold.locks, leasehold.released to %I', p_role);
end $$;
revoke all on function leasehold.allow(name) from public;
