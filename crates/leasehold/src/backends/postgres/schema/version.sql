-- The version of the schema, the oldest that a library may have been written for, and how its tables are stored.
select v.version, v.usable_since, (select c.relpersistence = 'u' from pg_class c where c.oid = to_regclass('leasehold.resource')) as unlogged
from leasehold.version() v
