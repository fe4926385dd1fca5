-- Wrappers and views in the schema /*target*/ for callers that do not say a schema: psql, PostgREST, Supabase.
-- They have the owner's rights, so that a caller needs nothing but EXECUTE or SELECT on them:
--   grant execute on function acquire_lock, release_lock, extend_lock to app;
create or replace function /*target*/acquire_lock(
  p_lock_name text, p_holder_id text, p_ttl_seconds double precision default 30, p_metadata jsonb default '{}'
) returns boolean language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.acquire_lock(p_lock_name, p_holder_id, p_ttl_seconds, p_metadata) $$;

create or replace function /*target*/release_lock(p_lock_name text, p_holder_id text) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.release_lock(p_lock_name, p_holder_id) $$;

create or replace function /*target*/extend_lock(p_lock_name text, p_holder_id text, p_additional_seconds double precision)
returns boolean language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.extend_lock(p_lock_name, p_holder_id, p_additional_seconds) $$;

create or replace function /*target*/acquire(x text) returns uuid
language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.acquire(x) $$;

create or replace function /*target*/acquit(lock_id uuid, error_type text default null, error_details text default null)
returns boolean language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select leasehold.acquit(lock_id, error_type, error_details) $$;

create or replace view /*target*/distributed_locks as select * from leasehold.distributed_locks;
create or replace view /*target*/locks as select * from leasehold.locks;
create or replace view /*target*/released as select * from leasehold.released;

revoke all on function /*target*/acquire_lock(text, text, double precision, jsonb), /*target*/release_lock(text, text),
  /*target*/extend_lock(text, text, double precision), /*target*/acquire(text), /*target*/acquit(uuid, text, text) from public;
