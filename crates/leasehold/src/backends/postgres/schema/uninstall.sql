-- Removes the schema, and from the schema /*target*/ what expose.sql put there.
do $leasehold$
declare
  found record;
begin
  for found in
    select 'function ' || p.oid::regprocedure as what from pg_proc p
    where p.pronamespace = to_regnamespace(nullif('/*target*/', ''))
      and obj_description(p.oid, 'pg_proc') = 'The same as leasehold.' || p.proname || '.'
    union all
    select 'view ' || c.oid::regclass from pg_class c
    where c.relnamespace = to_regnamespace(nullif('/*target*/', ''))
      and obj_description(c.oid, 'pg_class') = 'The same as leasehold.' || c.relname || '.'
  loop
    execute 'drop ' || found.what;
  end loop;
  drop schema leasehold cascade;
end $leasehold$;
