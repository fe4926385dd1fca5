-- The version of the schema, the oldest that a library may have been written for, and how its tables are stored.
select v.version, v.usable_since, v.unlogged from leasehold.version() v
