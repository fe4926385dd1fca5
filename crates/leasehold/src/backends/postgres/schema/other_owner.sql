-- One row if the schema belongs to another role.
select from pg_namespace n where n.nspname = 'leasehold' and pg_get_userbyid(n.nspowner) <> current_user
