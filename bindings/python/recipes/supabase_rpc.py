"""The same lock by rpc, for code that has a Supabase client and no connection to the database.

`leasehold init -b postgres://… --expose public` puts the functions where rpc finds them.
"""

from collections.abc import Generator
from contextlib import contextmanager

from postgrest import SyncPostgrestClient


@contextmanager
def rpc_lock(client: SyncPostgrestClient, name: str, holder: str, ttl: int = 30) -> Generator[bool]:
    """Tries to lock the name; whether that worked. `supabase.Client.rpc` takes the same arguments.

    Nobody renews the lease: the work must end within the ttl.
    """
    arguments = {"p_lock_name": name, "p_holder_id": holder, "p_ttl_seconds": str(ttl)}
    held = client.rpc("acquire_lock", arguments).execute().data is True
    try:
        yield held
    finally:
        if held:
            client.rpc("release_lock", {"p_lock_name": name, "p_holder_id": holder}).execute()
