-- Who may install the schema, and whether that is this role: its owner, or else whoever may create one.
select coalesce(pg_get_userbyid(n.nspowner) = current_user, has_database_privilege(d.oid, 'CREATE')) as is_this_role,
  pg_get_userbyid(coalesce(n.nspowner, d.datdba))::text as owner
from pg_database d left join pg_namespace n on n.nspname = 'leasehold'
where d.datname = current_database()
