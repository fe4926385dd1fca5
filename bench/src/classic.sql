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
