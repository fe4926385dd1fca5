"""A lock that can be acquired, in a thread or in a task."""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Generic, TypeVar

from . import _native
from ._calls import run, wait
from ._errors import NotAcquired
from ._lease import Held
from ._options import OnLost

HeldT = TypeVar("HeldT", bound=Held)


def _here() -> object:
    """The task or the thread that runs this code."""
    # Without the exception that asyncio.current_task raises in a thread without a loop.
    loop = asyncio._get_running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    return task if task is not None else threading.get_ident()


class Lock(Generic[HeldT]):
    """A lock with its options. Nothing happens until it is entered or acquired.

    One object serves `with` and `async with`, and many threads and tasks at a time, each of which gets a lease of its own.
    """

    __slots__ = ("_entered", "_lease_class", "_native", "_on_lost")

    def __init__(self, native: _native.Lock, lease_class: type[HeldT], on_lost: OnLost) -> None:
        self._native = native
        self._lease_class = lease_class
        self._on_lost: OnLost = on_lost
        self._entered: list[tuple[object, HeldT]] = []

    async def acquire(self) -> HeldT:
        """Waits for the lock. Raises `LockBusy` when the wait is over.

        Use the lease in `async with`, or release it yourself.
        """
        began = time.monotonic()
        try:
            return self._lease_class(await run(self._native.acquire()), self._on_lost)
        except NotAcquired as busy:
            busy.waited = time.monotonic() - began
            raise

    def acquire_sync(self) -> HeldT:
        """As `acquire`, blocking this thread."""
        began = time.monotonic()
        try:
            return self._lease_class(self._native.acquire_sync(), self._on_lost)
        except NotAcquired as busy:
            busy.waited = time.monotonic() - began
            raise

    async def try_acquire(self) -> HeldT | None:
        """Takes the lock if it is free and nobody waits for it; returns None otherwise."""
        grant = await run(self._native.try_acquire())
        return None if grant is None else self._lease_class(grant, self._on_lost)

    def try_acquire_sync(self) -> HeldT | None:
        """As `try_acquire`, blocking this thread."""
        grant = wait(self._native.try_acquire())
        return None if grant is None else self._lease_class(grant, self._on_lost)

    def __enter__(self) -> HeldT:
        lease = self.acquire_sync()
        self._entered.append((_here(), lease))
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left()._leave_sync(error)

    async def __aenter__(self) -> HeldT:
        lease = await self.acquire()
        lease._enter()
        self._entered.append((_here(), lease))
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._left()._leave(error)

    def _left(self) -> HeldT:
        """The lease of the block that ends: the last one of this task or thread, or else the last one of all.

        Frameworks may leave a block in another thread than they entered it in.
        """
        here = _here()
        for at in range(len(self._entered) - 1, -1, -1):
            if self._entered[at][0] == here:
                return self._entered.pop(at)[1]
        return self._entered.pop()[1]
