-- The lock functions that people write by hand.
create table classic_lock (
  name text primary key,
  holder text not null,
  acquired_at timestamptz not null default now(),
  expires_at timestamptz not null,
  metadata jsonb not null default '{}'
);
create index on classic_lock (expires_at);
create index on classic_lock (holder);

create function classic_acquire(p_name text, p_holder text, p_ttl int default 30, p_metadata jsonb default '{}') returns boolean
language plpgsql security definer as $$
begin
  delete from classic_lock where name = p_name and expires_at < now();
  insert into classic_lock (name, holder, expires_at, metadata)
  values (p_name, p_holder, now() + make_interval(secs => p_ttl), p_metadata)
  on conflict (name) do update
    set holder = excluded.holder, expires_at = excluded.expires_at, acquired_at = now(), metadata = excluded.metadata
    where classic_lock.holder = excluded.holder or classic_lock.expires_at < now();
  return exists (select 1 from classic_lock where name = p_name and holder = p_holder);
end $$;

create function classic_release(p_name text, p_holder text) returns boolean
language plpgsql security definer as $$
begin
  delete from classic_lock where name = p_name and holder = p_holder;
  return found;
end $$;

-- The least that a hand-off by NOTIFY takes: a row, a queue, no expiry, no fence, no history.
create table notified_lock (one boolean primary key default true check (one), held boolean not null default false);
insert into notified_lock default values;
create table notified_waiter (seq bigint generated always as identity primary key, ticket bigint not null, channel text not null);

create function notified_acquire(p_ticket bigint, p_channel text) returns boolean
language plpgsql as $$
begin
  perform from notified_lock for no key update;
  update notified_lock set held = true where not held;
  if found then
    return true;
  end if;
  insert into notified_waiter (ticket, channel) values (p_ticket, p_channel);
  perform set_config('synchronous_commit', 'off', true);
  return false;
end $$;

create function notified_release() returns void
language plpgsql as $$
declare
  next notified_waiter;
begin
  perform from notified_lock for no key update;
  delete from notified_waiter where seq = (select min(w.seq) from notified_waiter w) returning * into next;
  if found then
    perform pg_notify(next.channel, next.ticket::text);
  else
    update notified_lock set held = false;
  end if;
end $$;
