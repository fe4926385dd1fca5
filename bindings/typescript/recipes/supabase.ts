// supabase-js on the same lock as leasehold: an edge function without native code calls the SQL functions by rpc.
// `leasehold init -b postgres://… --expose public` puts them where rpc looks.

import type { SupabaseClient } from '@supabase/supabase-js';

export async function withSupabaseLock<T>(
  supabase: SupabaseClient,
  name: string,
  ttlSeconds: number,
  work: () => Promise<T>,
): Promise<{ value: T } | null> {
  const holder = `edge:${crypto.randomUUID()}`;
  const acquired = await supabase.rpc('acquire_lock', {
    p_lock_name: name,
    p_holder_id: holder,
    p_ttl_seconds: ttlSeconds,
  });
  if (acquired.error) throw acquired.error;
  if (acquired.data !== true) return null;
  try {
    // Nothing renews this lease: the work must end within the ttl, or call `extend_lock`.
    return { value: await work() };
  } finally {
    await supabase.rpc('release_lock', { p_lock_name: name, p_holder_id: holder });
  }
}
