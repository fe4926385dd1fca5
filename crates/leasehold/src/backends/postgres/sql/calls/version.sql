select leasehold.version(), (select c.relpersistence::text from pg_class c where c.oid = to_regclass($$leasehold.resource$$))
