-- The end of an installation: version() says in constants what is installed, since every connection asks first.
execute (
  select format('create or replace function leasehold.version(out version int, out usable_since int, out unlogged boolean) '
    'language sql immutable as %L', format('select %s, %s, %L::boolean', m.version, m.usable_since, c.relpersistence = 'u'))
  from leasehold.migration m, pg_class c
  where c.oid = 'leasehold.resource'::regclass order by m.version desc limit 1);
revoke all on function leasehold.version() from public;
