-- Answers the version of the schema, and how its tables are kept.
select leasehold.version(), (select c.relpersistence::text from pg_class c where c.oid = to_regclass($$leasehold.resource$$))
