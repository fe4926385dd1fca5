-- One installs at a time, whoever else does; the lock ends with the transaction.
set local lock_timeout = 0;
select pg_advisory_xact_lock(1279807556, 1);
set local client_min_messages = warning;
set local check_function_bodies = off;
set local search_path = pg_catalog;
create schema if not exists leasehold;
