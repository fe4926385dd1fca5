"""A connection to one backend, and what can be locked on it."""

from __future__ import annotations

import os
from datetime import datetime
from types import TracebackType
from typing import Literal, TypeAlias, Unpack, overload

from . import _native
from ._calls import run, wait
from ._election import Election
from ._guard import Guard, SkippingGuard
from ._lease import Lease, Leases
from ._lock import Lock
from ._options import DEFAULT, AcquireOptions, AllOptions, LockOptions, Wait, to_native
from ._records import EndedLease, LeaseInfo, many
from ._watch import Watch


_LeaseInfos: TypeAlias = list[LeaseInfo]
_EndedLeases: TypeAlias = list[EndedLease]


def connect(
    url: str | None = None,
    *,
    namespace: str | None = None,
    holder: str | None = None,
    ttl: float | None = None,
    wait: Wait = DEFAULT,
) -> Leasehold:
    """Returns the locks on the backend of this URL: `postgres://`, `redis://`, `redlock://`, `file:` or `memory:`.

    Nothing is opened until the first use. Without a URL, `LEASEHOLD_URL` names it, and `file:` is used if that is not set;
    `LEASEHOLD_NAMESPACE` names the namespace. `holder` is the name that others see. `ttl` and `wait` are the defaults of
    locks: 30 and 10 seconds unless given; `wait=None` waits without limit.
    """
    return Leasehold(
        # One that is set but empty is a mistake, not a wish for locks on this machine alone.
        url if url is not None else os.environ.get("LEASEHOLD_URL", "file:"),
        namespace=namespace or os.environ.get("LEASEHOLD_NAMESPACE"),
        holder=holder,
        ttl=ttl,
        wait=wait,
    )


class Leasehold:
    """A connection to one backend, for any number of threads and tasks. Call it to name a lock."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        holder: str | None = None,
        ttl: float | None = None,
        wait: Wait = DEFAULT,
        clock: _native.Clock | None = None,
    ) -> None:
        self.url = url
        self.namespace = namespace
        seconds = wait if isinstance(wait, (int, float)) else None
        self._native = _native.Instance(url, namespace, holder, ttl, seconds, wait is None, clock)

    def __call__(self, name: str, **options: Unpack[LockOptions]) -> Lock[Lease]:
        """A lock for one holder at a time.

        `wait`: how many seconds to wait at most; 0 not at all, None without limit. `ttl`: how many seconds the lease
        lives without a renewal; it is renewed in the background, so this limits how long others wait after a crash, not
        how long the work may take. `max_hold`: after how many seconds the lease is lost however often it is renewed.
        `note` and `metadata`: for others to read. `max_waiters`: how many may be ahead in the queue. `auto_renew=False`:
        the lease ends with its ttl unless you renew it, and outlives this process. `on_lost`: whether the loss of the lock
        cancels the task in an `async with` block, or only sets `lease.lost`.
        """
        return self._lock("mutex", name, options)

    def read(self, name: str, **options: Unpack[LockOptions]) -> Lock[Lease]:
        """The read side of a read-write lock: readers share it."""
        return self._lock("read", name, options)

    def write(self, name: str, **options: Unpack[LockOptions]) -> Lock[Lease]:
        """The write side of a read-write lock, which is the same as a lock for one holder."""
        return self._lock("write", name, options)

    def semaphore(self, name: str, limit: int, *, permits: int = 1, **options: Unpack[LockOptions]) -> Lock[Lease]:
        """Permits of a semaphore: at most `limit` at a time. Everybody must name the same limit."""
        return self._lock("semaphore", name, options, limit, permits)

    def _lock(self, kind: str, name: str, options: LockOptions, limit: int = 1, permits: int = 1) -> Lock[Lease]:
        chosen = to_native(options, LockOptions)
        lock = _native.Lock(self._native, kind, (name,), limit, permits, options=chosen)
        return Lock(lock, Lease, options.get("on_lost", "cancel"))

    def all(self, *names: str, **options: Unpack[AllOptions]) -> Lock[Leases]:
        """Several locks together: either all of them or none. They are sorted, so that nobody deadlocks."""
        lock = _native.Lock(self._native, "all", names, options=to_native(options, AllOptions))
        return Lock(lock, Leases, options.get("on_lost", "cancel"))

    def election(self, name: str, *, value: str | None = None, **options: Unpack[AcquireOptions]) -> Election:
        """An election of one leader, which publishes `value`. Its ttl is 10 seconds, and it waits without limit, unless
        told otherwise."""
        chosen = to_native(options, AcquireOptions)
        campaign = _native.Lock(self._native, "election", (name,), value=value, options=chosen)
        return Election(self._native, name, campaign)

    @overload
    def guard(self, name: str, *, on_busy: Literal["raise"] = "raise", **options: Unpack[LockOptions]) -> Guard: ...

    @overload
    def guard(self, name: str, *, on_busy: Literal["skip"], **options: Unpack[LockOptions]) -> SkippingGuard: ...

    def guard(
        self, name: str, *, on_busy: Literal["raise", "skip"] = "raise", **options: Unpack[LockOptions]
    ) -> Guard | SkippingGuard:
        """A decorator that runs a function, async or not, under a lock.

        With `on_busy="skip"` the function is not called when the lock is busy, and the result is None.
        """
        lock = self(name, **options)
        return SkippingGuard(lock) if on_busy == "skip" else Guard(lock)

    async def open(self) -> None:
        """Connects now, to find out early whether that works."""
        await run(self._native.connect())

    def open_sync(self) -> None:
        """As `open`, blocking."""
        wait(self._native.connect())

    async def list(self, name: str | None = None, *, prefix: str | None = None, limit: int = 1000) -> _LeaseInfos:
        """Live leases and queue positions of one name, of names with a prefix, or of all."""
        return many(LeaseInfo, await run(self._native.list(name, prefix, limit)))

    def list_sync(self, name: str | None = None, *, prefix: str | None = None, limit: int = 1000) -> _LeaseInfos:
        """As `list`, blocking."""
        return many(LeaseInfo, wait(self._native.list(name, prefix, limit)))

    async def history(
        self,
        name: str | None = None,
        *,
        prefix: str | None = None,
        failures: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> _EndedLeases:
        """Leases that ended, newest first; with `failures`, only those that ended badly."""
        return many(EndedLease, await run(self._history(name, prefix, failures, since, until, limit)))

    def history_sync(
        self,
        name: str | None = None,
        *,
        prefix: str | None = None,
        failures: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> _EndedLeases:
        """As `history`, blocking."""
        return many(EndedLease, wait(self._history(name, prefix, failures, since, until, limit)))

    def _history(
        self,
        name: str | None,
        prefix: str | None,
        failures: bool,
        since: datetime | None,
        until: datetime | None,
        limit: int,
    ) -> _native.Call:
        micros = [None if time is None else round(time.timestamp() * 1e6) for time in (since, until)]
        return self._native.history(name, prefix, failures, micros[0], micros[1], limit)

    def watch(self, name: str | None = None, *, prefix: str | None = None) -> Watch:
        """Events about one name, names with a prefix, or all, from now on."""
        return Watch(self._native, name, prefix)

    async def evict(self, name: str, fence: int, reason: str) -> bool:
        """Takes the lease with this fence away from its holder; returns False if there is none.

        The holder is told, and may work on until it notices: a store that checks the fence refuses its writes.
        """
        evicted: bool = await run(self._native.evict(name, fence, reason))
        return evicted

    def evict_sync(self, name: str, fence: int, reason: str) -> bool:
        """As `evict`, blocking."""
        evicted: bool = wait(self._native.evict(name, fence, reason))
        return evicted

    async def close(self) -> None:
        """Ends every wait and gives back every lease of this object."""
        await run(self._native.close())

    def close_sync(self) -> None:
        """As `close`, blocking."""
        wait(self._native.close())

    async def __aenter__(self) -> Leasehold:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Leasehold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_sync()
