-- What is stored. Names, units and fences mean what they mean in model.rs:
-- `resource` with `entry` is model::State, a row of `entry` is model::Entry.
--
-- No index holds a column that a renewal or a release changes, so that both
-- stay on their page (HOT). Times decide by clock_timestamp() alone.

-- One row for each version that was installed, and the oldest version of the library's schema that still works with it.
create table leasehold.migration (
  version int primary key,
  usable_since int not null,
  applied_at timestamptz not null default clock_timestamp()
);

-- One row per name. A holder that got the name to itself is kept in the row
-- itself (the inline holder): then taking and giving back is one update each.
-- In a *plain* row last_fence is null, and the columns that acquire_lock() does not set have their defaults: each
-- column that a statement sets costs time.
create /*durability*/ table leasehold.resource (
  namespace text not null,
  name text not null,
  -- The newest fence is this or `fence`, whichever is higher.
  last_fence bigint,
  -- Readers take fences from here on without writing this row; null: readers must lock the row.
  reader_base bigint,
  -- Whether rows of `entry` may exist for this name.
  has_entries boolean not null default false,
  -- The units that entries hold, and how many entries wait. Exact if reader_base is null; otherwise readers are not
  -- counted here.
  used bigint not null default 0,
  waiting int not null default 0,
  -- No entry ends before this; -infinity if one is bound to a session, which may end at any time.
  next_end timestamptz not null default 'infinity',
  -- When the inline holder was last removed.
  freed_at timestamptz not null default clock_timestamp(),
  -- The inline holder; null: none. Other columns keep their old values after it ends.
  id uuid,
  fence bigint not null default 0,
  mode "char" default 'x',
  units int default 2147483647,
  capacity int default 2147483647,
  holder text,
  note text,
  metadata jsonb,
  ttl_us bigint,  -- null: from acquired_at to expires_at
  expires_at timestamptz not null default '-infinity',
  -- null: acquired_at
  asked_at timestamptz,
  renewed_at timestamptz,
  acquired_at timestamptz,
  session int,
  channel text default 'sql',
  primary key (namespace, name)
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_cost_delay = 0
);

-- Filler rows: for a tiny table Postgres plans a sequential scan, and a cached plan is kept while the table grows.
insert into leasehold.resource (namespace, name, note, freed_at)
select '', n, repeat('-', 1900), 'infinity' from generate_series(1, 24) n;

-- Holding and waiting entries beside the inline holder, in the order of `seq`.
create /*durability*/ table leasehold.entry (
  id uuid not null,
  namespace text not null,
  name text not null,
  seq bigint generated always as identity,
  mode "char" not null,
  units int not null,
  capacity int not null,
  holder text not null,
  note text,
  metadata jsonb not null,
  ttl_us bigint not null,
  expires_at timestamptz not null,
  asked_at timestamptz not null,
  renewed_at timestamptz not null,
  -- Set once it holds.
  acquired_at timestamptz,
  fence bigint,
  floor bigint,
  session int,
  channel text,
  -- Handed over by another instance: ends at expires_at unless its own instance confirms it.
  provisional boolean not null default false,
  primary key (id, namespace, name)
) with (
  fillfactor = 70, vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_cost_delay = 0
);
create index entry_in_order on leasehold.entry (namespace, name, seq);

-- All who hold or wait, wherever they are stored; the inline holder was first.
create view leasehold._lease as
  select r.namespace, r.name, 0::bigint as seq, r.id, r.mode, r.units, r.capacity, r.holder, r.note, r.metadata,
    coalesce(r.ttl_us, (date_part('epoch', r.expires_at - r.acquired_at) * 1000000)::bigint) as ttl_us, r.expires_at,
    coalesce(r.asked_at, r.acquired_at) as asked_at, coalesce(r.renewed_at, r.acquired_at) as renewed_at, r.acquired_at,
    r.fence, r.session, false as provisional
  from leasehold.resource r where r.id is not null
  union all
  select e.namespace, e.name, e.seq, e.id, e.mode, e.units, e.capacity, e.holder, e.note, e.metadata, e.ttl_us, e.expires_at,
    e.asked_at, e.renewed_at, e.acquired_at, e.fence, e.session, e.provisional
  from leasehold.entry e;

-- Ended leases.
create /*durability*/ table leasehold.ended (
  id uuid not null, namespace text not null, name text not null,
  mode "char" not null, units int not null, capacity int not null,
  holder text not null, note text, metadata jsonb not null,
  fence bigint,
  asked_at timestamptz not null,
  acquired_at timestamptz,
  ended_at timestamptz not null,
  ending text not null,
  problem text,
  details text
);
-- For deletes, a publication FOR ALL TABLES needs a replica identity; a primary key would slow every release.
alter table leasehold.ended replica identity full;
create index ended_by_name on leasehold.ended (namespace, name, ended_at);
create index ended_by_time on leasehold.ended (namespace, ended_at);
-- To find failures among millions that went well.
create index ended_badly on leasehold.ended (namespace, ended_at) where ending not in ('released', 'cancelled');

-- Sessions that leases are bound to. The connection of each holds the advisory lock (class, id) as long as it lives.
create /*durability*/ table leasehold.session (
  id int primary key,
  pid int not null,
  opened_at timestamptz not null,
  client text not null
);
create sequence leasehold.session_id as int cycle;

-- Maps an id from acquire() to its name and session.
create /*durability*/ table leasehold.session_lease (
  id uuid primary key,
  name text not null,
  session int not null
);

-- Gives concurrent readers distinct fences.
create sequence leasehold.reader;

-- How far maintain() has looked through the blocks of `resource`, and when it was last through with them all.
create table leasehold.upkeep (
  one boolean primary key default true check (one),
  block bigint not null default 0,
  finished_at timestamptz not null default '-infinity'
);
insert into leasehold.upkeep default values;

-- Where events of this schema are sent: a name that nobody guesses, which watch() tells to those who may watch.
create table leasehold.event_channel (channel text primary key);
insert into leasehold.event_channel values ('lh_events_' || left(replace(gen_random_uuid()::text, '-', ''), 24));

-- Who watches events, by namespace; nothing is sent while nobody does.
create /*durability*/ table leasehold.watcher (
  channel text primary key,
  namespace text not null,
  until timestamptz not null
);
-- A flag: somebody may be watching if last_value is not null. Every call reads it, which is cheaper than reading `watcher`.
create sequence leasehold.watched;

-- How runs of scheduled jobs went, as far as they were reported: RunRecord.
create /*durability*/ table leasehold.run (
  namespace text not null,
  name text not null collate "C",
  skips bigint not null,
  last_skip timestamptz,
  held_by text,
  last_success timestamptz,
  reported_at timestamptz not null,
  primary key (namespace, name)
);
create index run_by_report on leasehold.run (namespace, reported_at, name);

-- Who calls, and how its calls are recorded: a row of `caller` goes with every operation.
create type leasehold.caller as (
  namespace text,
  channel text,       -- where the caller's instance listens; `sql` for acquire_lock(), null for others who do not listen
  session int,        -- the session that attached leases are bound to; null: they end by ttl
  history "char",     -- a all, p problems, o off
  watched boolean     -- whether events are sent
);

-- One operation on one resource: the parameters of acquire, renew, release and evict in model.rs.
create type leasehold.operation as (
  op "char",          -- a acquire, n renew, r release, e evict, s settle only
  name text,
  id uuid,
  mode "char",        -- x exclusive, s shared, p permit, l leader; renew: what to keep, or null
  units int,
  capacity int,
  ttl_us bigint,
  max_ahead int,      -- how many may wait ahead of it: -1 for a try, null for any number
  attached boolean,   -- renew: false to detach the lease from its session
  holder text,
  note text,
  metadata jsonb,     -- renew: the new one, or null
  floor bigint,       -- evict: the expected fence
  ending text,
  problem text,
  details text
);

-- The answer to an operation.
create type leasehold.answer as (
  at int,
  verdict "char",     -- g holds, q waits, b busy, s wrong shape, n none, f freed, l left the queue, e evicted
  fence bigint,       -- g: its fence; q: the resource's newest
  acquired_us bigint,
  ahead int,
  ask_again_us bigint,
  mode "char",        -- s: what is in force; b: how the only holder holds
  capacity int,
  holder text,        -- b: the only holder, which spares building `holders`
  note text,
  held_us bigint,
  holders jsonb,      -- b, e: who holds or held
  waiting int,        -- b: how many wait
  behind_session boolean, -- q: whether a lease ahead is bound to a session
  granted int,        -- grants in this call, repeated ones too; if above 0, commit synchronously
  hints text[]        -- for the caller's own instance
);

-- An operation under way: the resource as it will be stored, and what settling has found so far.
create type leasehold.step as (
  r leasehold.resource,
  e leasehold.entry,  -- the entry that the operation is about
  existed boolean,    -- whether that entry was there before
  now timestamptz,
  guarded boolean,    -- whether an open guarded transaction keeps something from being granted
  may_grant boolean,  -- the answer of _may_grant(); null: not called yet
  settled boolean,    -- true: skip the second settling
  a leasehold.answer
);
