-- Removes the schema, and what expose.sql put into others: all that is marked so and belongs to this role or to the schema's
-- owner. Anybody can write such a mark.
do $leasehold$
declare
  owners oid[] := array(
    select r.oid from pg_roles r where r.rolname = current_user
    union select n.nspowner from pg_namespace n where n.nspname = 'leasehold');
  messages text := current_setting('client_min_messages');
  found record;
begin
  -- A notice for each of a hundred objects would help nobody.
  perform set_config('client_min_messages', 'warning', true);
  for found in
    select 'function ' || p.oid::regprocedure as what from pg_proc p
    where p.proowner = any (owners) and obj_description(p.oid, 'pg_proc') = 'The same as leasehold.' || p.proname || '.'
    union all
    select 'view ' || c.oid::regclass from pg_class c
    where c.relowner = any (owners) and obj_description(c.oid, 'pg_class') = 'The same as leasehold.' || c.relname || '.'
  loop
    execute 'drop ' || found.what;
  end loop;
  drop schema leasehold cascade;
  perform set_config('client_min_messages', messages, true);
end $leasehold$;
