-- The beginning of an installation. Serialises installations; the lock ends with the transaction. Its number is that of
-- _session_lock_class().
perform pg_advisory_xact_lock(1279807556, 1);
perform set_config('search_path', 'pg_catalog', true), set_config('check_function_bodies', 'off', true);
-- Whoever may change a schema could put code there that runs with the rights of those who call it.
if exists (select from pg_namespace n where n.nspname = 'leasehold' and pg_get_userbyid(n.nspowner) <> current_user) then
  raise exception 'the schema leasehold belongs to another role than %', current_user
    using errcode = 'LH007', hint = (
      select format('Run init as that role, %s, or choose another schema with ?schema=.', pg_get_userbyid(n.nspowner))
      from pg_namespace n where n.nspname = 'leasehold');
end if;
if exists (select from pg_namespace n, aclexplode(n.nspacl) a
    where n.nspname = 'leasehold' and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner) then
  raise exception 'others than its owner may create in the schema leasehold'
    using errcode = 'LH007', hint = 'Revoke create on it from them, or choose another with ?schema=.';
end if;
if not exists (select from pg_namespace n where n.nspname = 'leasehold') then
  create schema leasehold;
end if;
if to_regclass('leasehold.migration') is not null then
  select coalesce(max(m.version), 0) into there from leasehold.migration m;
end if;
if there <> /*installed*/ then
  raise exception 'the schema leasehold has version %, not /*installed*/', there
    using errcode = 'LH002', hint = 'Print the statements for the version that is there.';
end if;
