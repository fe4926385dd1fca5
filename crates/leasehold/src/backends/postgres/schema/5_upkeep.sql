-- Keeping the tables small.

-- Bounded work that any client may call at any time, a scheduled job too: it looks at `resource` block by block from where
-- the last call stopped, until it has changed `p_most` rows or worked for a fifth of a second. It does nothing while another
-- does the same, nor within `p_pause` after the last call that was through with all blocks.
-- Returns how much was done: 250 or more, and there may be more to do.
create function leasehold.maintain(
  p_keep_history interval default '7 days', p_most int default 1000, p_pause interval default '0'
) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '400ms' as $$
declare
  t timestamptz := clock_timestamp();
  blocks bigint := pg_relation_size('leasehold.resource') / current_setting('block_size')::int;
  at leasehold.upkeep;
  done int := 0;
  removed int;
begin
  perform leasehold._check_isolation();
  if p_keep_history < interval '1 day' and not pg_has_role(session_user, current_user, 'member') then
    raise exception 'history younger than a day is removed by the owner of the schema only' using errcode = '42501';
  end if;
  select * into at from leasehold.upkeep for update skip locked;
  if not found or (at.finished_at > t - p_pause and at.finished_at <= t) then
    return 0;
  end if;
  -- An unfinished pass resumes at once.
  at.finished_at := '-infinity';
  loop
    -- Two advisory locks stay for each until the end, and a small server has some three thousand for all.
    done := done + leasehold._maintain_blocks(at.block, at.block + 256, t, true, least(p_most - done, 250));
    exit when done >= least(p_most, 250);
    at.block := at.block + 256;
    if at.block >= blocks then
      at.block := 0;
      at.finished_at := t;
      exit;
    end if;
    exit when clock_timestamp() > t + interval '200 ms';
  end loop;
  update leasehold.upkeep u set block = at.block, finished_at = at.finished_at;
  with recursive space(namespace) as (
    (select h.namespace from leasehold.ended h order by h.namespace limit 1)
    union all
    select (select h.namespace from leasehold.ended h where h.namespace > s.namespace order by h.namespace limit 1)
    from space s where s.namespace is not null
  )
  delete from leasehold.ended h where h.ctid = any (array(
    select x.ctid from space s cross join lateral (
      select y.ctid from leasehold.ended y where y.namespace = s.namespace and y.ended_at < t - p_keep_history
      order by y.ended_at limit p_most for update skip locked) x
    limit p_most));
  get diagnostics removed = row_count;
  done := done + removed;
  delete from leasehold.watcher w where w.until < t;
  if pg_sequence_last_value('leasehold.watched') is not null and pg_try_advisory_xact_lock(leasehold._session_lock_class(), 0)
    and not exists (select from leasehold.watcher) then
    perform setval('leasehold.watched', 1, false);
  end if;
  -- A lock stays for each of these, too.
  delete from leasehold.session_lease l where l.id = any (array(
    select x.id from leasehold.session_lease x where leasehold._session_dead(x.session) limit least(p_most, 250)));
  get diagnostics removed = row_count;
  done := done + removed;
  delete from leasehold.session s where s.id = any (array(
    select x.id from leasehold.session x where leasehold._session_dead(x.id) limit least(p_most, 250)));
  get diagnostics removed = row_count;
  return done + removed;
end $$;

-- Settles what ran out or lost its connection in some blocks of `resource`, and removes names that nobody used for a day;
-- a fence ahead of the clock is remembered. Waits for nobody, and looks for dead connections only where `p_probe` says so.
create function leasehold._maintain_blocks(p_from bigint, p_to bigint, t timestamptz, p_probe boolean, p_most int) returns int
language plpgsql volatile as $$
declare
  u record;
  done int := 0;
begin
  for u in
    select r.namespace, r.name, r.id is null and not r.has_entries as idle from leasehold.resource r
    where r.ctid >= format('(%s,0)', p_from)::tid and r.ctid < format('(%s,0)', p_to)::tid
      and (case when r.id is null then not r.has_entries and r.freed_at < t - interval '1 day' and greatest(r.last_fence, r.fence) < leasehold._micros(t)
          else r.expires_at <= t or p_probe and leasehold._session_dead(r.session) end
        -- The last of many readers leaves without writing the row.
        or r.has_entries and (r.freed_at < t - interval '1 day' and not exists (
            select from leasehold.entry e where e.namespace = r.namespace and e.name = r.name)
          or exists (select from leasehold.entry e where e.namespace = r.namespace and e.name = r.name
            and (e.expires_at <= t or p_probe and leasehold._session_dead(e.session)))))
    order by r.namespace collate "C", r.name collate "C" limit p_most
  loop
    -- Skip a name that somebody has locked, or that a guarded transaction relies on: it must not delay the others.
    perform 1 from leasehold.resource r where r.namespace = u.namespace and r.name = u.name for no key update skip locked;
    continue when not found;
    if not u.idle then
      continue when not pg_try_advisory_xact_lock(leasehold._reader_lock(u.namespace, u.name))
        or not leasehold._may_grant(u.namespace, u.name);
      perform leasehold._operate(row(u.namespace, null, null, leasehold._history(), leasehold._watched(u.namespace)),
        row('s', u.name, null, null, null, null, null, null, null, null, null, null, null, null, null, null)::leasehold.operation);
    end if;
    delete from leasehold.resource r where r.namespace = u.namespace and r.name = u.name and r.id is null and not r.has_entries
      and (u.idle and r.freed_at < t - interval '1 day' or r.expires_at < t - interval '1 day') and greatest(r.last_fence, r.fence) < leasehold._micros(t);
    done := done + 1;
  end loop;
  return done;
end $$;

-- Upkeep by the callers of the SQL functions, who may have no instance of the library: one call in 500 runs it. It looks at
-- blocks chosen at random, so that no two calls meet, and removes up to four times as many rows as 500 calls add: the tables
-- stay small even if every call has a name of its own.
-- What it removes stays locked until the caller's transaction ends. So it removes only what nobody used for a day, few of
-- the names that take advisory locks to remove, and nothing after a BEGIN.
-- With a generic plan: a connection that makes some thousand calls would otherwise plan most of its samples anew.
create function leasehold._maintain_sample(t timestamptz) returns void
language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
declare
  at bigint := floor(random() * (pg_relation_size('leasehold.resource') / current_setting('block_size')::int));
begin
  if transaction_timestamp() < statement_timestamp() then
    return;
  end if;
  delete from leasehold.resource r where r.ctid = any (array(
    select x.ctid from leasehold.resource x
    where x.ctid >= format('(%s,0)', at)::tid and x.ctid < format('(%s,0)', at + 128)::tid and x.id is null and not x.has_entries
      and x.freed_at < t - interval '1 day' and greatest(x.last_fence, x.fence) < leasehold._micros(t)
    limit 2048 for update skip locked));
  perform leasehold._maintain_blocks(at, at + 16, t - interval '1 day', false, 100);
  delete from leasehold.ended h where h.ctid = any (array(
    select x.ctid from leasehold.ended x where x.namespace = 'default' and x.ended_at < t - interval '7 days'
    order by x.ended_at limit 2048 for update skip locked));
end $$;

-- True if no pass of maintain() finished in the last 20 s.
create function leasehold.maintain_due() returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select u.finished_at not between clock_timestamp() - interval '20 s' and clock_timestamp() from leasehold.upkeep u
$$;
