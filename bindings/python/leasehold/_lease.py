"""What a block under a lock gets: one lease, or several that are held together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from . import _native
from ._calls import calls_of, run, wait
from ._errors import LeaseholdError, LockLost
from ._options import OnLost

logger = logging.getLogger("leasehold")


class LostEvent:
    """Tells when a lease is lost. Releasing the lease does not set it, and ends every wait."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Held) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Returns whether the lease is lost; computed now, without I/O."""
        return self._lease._lost() is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the lease is lost or released, for at most `timeout` seconds; returns whether it is lost."""
        call = self._lease._grant.lost()
        if not call.wait(timeout):
            call.cancel()
        return self.is_set()

    async def wait_async(self) -> bool:
        """Waits until the lease is lost or released; returns whether it is lost."""
        await run(self._lease._grant.lost())
        return self.is_set()


class _LossScope:
    """Cancels the task of a block when its lease is lost, as `asyncio.timeout` does when the time is over."""

    __slots__ = ("_calls", "_cancelling", "_fired", "_number", "_task")

    def __init__(self, grant: _native.Lease, task: asyncio.Task[object]) -> None:
        self._task = task
        self._cancelling = task.cancelling()
        self._fired = False
        self._calls = calls_of(task.get_loop())
        self._number = self._calls.start(grant.lost(), self._fire)
        if self._number is None:
            self._fire()

    def _fire(self) -> None:
        self._fired = True
        self._task.cancel()

    def close(self, error: BaseException | None) -> bool:
        """Ends the scope; returns whether this is the cancellation that the loss caused, and no other one."""
        if self._number is not None:
            self._calls.forget(self._number)
        if not self._fired:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)


def _failure(error: BaseException | None) -> tuple[str, str] | None:
    """What the history records about a block that was left by this exception."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return None
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        return "cancelled", "the work was cancelled before it came to its end"
    return type(error).__qualname__, str(error)


class Held:
    """Leases that are held, and given back at the end of a `with` or `async with` block."""

    __slots__ = ("_grant", "_on_lost", "_released", "_scope", "_since")

    def __init__(self, grant: _native.Lease, on_lost: OnLost) -> None:
        self._grant = grant
        self._on_lost = on_lost
        self._released = False
        self._scope: _LossScope | None = None
        self._since = time.monotonic()

    @property
    def holder(self) -> str:
        """The name that others see."""
        return self._grant.holder()

    @property
    def ttl(self) -> float:
        """How many seconds a lease lives without a renewal."""
        return self._grant.ttl()

    @property
    def remaining(self) -> float:
        """How many seconds a lease stays valid without another renewal, less a margin; `inf` where it lasts as long as
        the process, as on `file:`."""
        return self._grant.remaining()

    @property
    def held(self) -> bool:
        """Whether everything is held; computed now, without I/O."""
        return self._grant.held()

    @property
    def lost(self) -> LostEvent:
        """The event of the loss."""
        return LostEvent(self)

    def check(self) -> None:
        """Raises `LockLost` unless everything is held. Cheap: call it before each write."""
        if not self._grant.held():
            raise self._lost_error(self._grant.loss())

    def __enter__(self) -> Self:
        self.check()
        return self

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def renew(self, ttl: float) -> None:
        """Renews for `ttl` seconds from now, and by that much from now on."""
        self.check()
        await run(self._grant.renew(ttl))

    def renew_sync(self, ttl: float) -> None:
        """As `renew`, blocking."""
        self.check()
        wait(self._grant.renew(ttl))

    async def release(self) -> None:
        """Gives everything back. Does nothing if it was given back or lost before."""
        self._end_scope()
        if self._grant.held():
            self._released = True
            await run(self._grant.release(None))

    def release_sync(self) -> None:
        """As `release`, blocking."""
        if self._grant.held():
            self._released = True
            self._grant.release_sync(None)

    def _leave_sync(self, error: BaseException | None) -> None:
        """Ends a block."""
        if self._released:
            return
        lost = self._grant.loss()
        was_held: bool | None = None
        if lost is None:
            self._released = True
            try:
                was_held = self._grant.release_sync(_failure(error))
            except LeaseholdError as problem:
                self._release_failed(error, problem)
        self._conclude(error, lost, was_held)

    def _enter(self) -> None:
        """Begins a block of this task, which the loss cancels."""
        self.check()
        task = asyncio.current_task()
        if self._on_lost == "cancel" and task is not None:
            self._scope = _LossScope(self._grant, task)

    async def _leave(self, error: BaseException | None) -> None:
        """Ends a block of this task."""
        lost = self._lost()
        if self._end_scope(error):
            raise self._lost_error(lost) from error
        was_held: bool | None = None
        if not self._released and lost is None:
            self._released = True
            try:
                was_held = await run(self._grant.release(_failure(error)))
            except LeaseholdError as problem:
                self._release_failed(error, problem)
        self._conclude(error, lost, was_held)

    def _end_scope(self, error: BaseException | None = None) -> bool:
        scope, self._scope = self._scope, None
        return scope is not None and scope.close(error)

    def _conclude(self, error: BaseException | None, lost: tuple[str, str] | None, was_held: bool | None) -> None:
        """Reports a loss at the end of a block, unless the block reports something else."""
        if was_held is False:
            lost = ("gone", f"{self} was lost before it was released")
        if lost is None:
            return
        if error is None:
            raise self._lost_error(lost)
        error.add_note(f"leasehold: {lost[1]}")

    def _release_failed(self, error: BaseException | None, problem: LeaseholdError) -> None:
        """The caller gets the exception of the block, with a note; without one, that of the release."""
        if error is None:
            raise problem
        error.add_note(f"leasehold: could not release {self}: {problem}")
        logger.warning("could not release %s after %s: %s", self, type(error).__name__, problem)

    def _lost(self) -> tuple[str, str] | None:
        """Why this is lost, as a word and as a sentence; None while it is held, and after `release`."""
        return None if self._released else self._grant.loss()

    def _lost_error(self, lost: tuple[str, str] | None) -> LockLost:
        reason, message = lost or ("gone", f"{self} is no longer held")
        error = LockLost(message, reason, time.monotonic() - self._since)
        error.kind = "lost"
        return error


class _One(Held):
    """One lease."""

    __slots__ = ("_described",)

    _described: tuple[str, int, str]

    def _describe(self) -> tuple[str, int, str]:
        try:
            return self._described
        except AttributeError:
            self._described = self._grant.grants()[0]
            return self._described

    @property
    def name(self) -> str:
        """What is locked."""
        return self._describe()[0]

    @property
    def fence(self) -> int:
        """A number that is higher than that of every earlier grant: send it with each write."""
        return self._describe()[1]

    @property
    def handle(self) -> str:
        """A secret word by which another process can check, renew or release the lease, as `leasehold release` does."""
        return self._describe()[2]

    def __str__(self) -> str:
        return f"{self.name} under fence {self.fence}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} fence={self.fence} held={self.held}>"


class _Block(Held):
    """A block that fails if what it holds is lost."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_sync(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)


class Lease(_Block, _One):
    """A lease that is held. It is renewed in the background until the block ends or it is released, unless the lock has
    `auto_renew=False`."""

    __slots__ = ()


class Term(_One):
    """A time during which this candidate leads. A block under it ends quietly when leadership is lost."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._leave_sync(error)
        except LockLost:
            return True
        return False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            await self._leave(error)
        except LockLost:
            return True
        return False


class Leases(_Block):
    """Several leases that are held together: the loss of one is the loss of all."""

    __slots__ = ("_fences",)

    def __init__(self, grant: _native.Lease, on_lost: OnLost) -> None:
        super().__init__(grant, on_lost)
        self._fences = {name: fence for name, fence, _ in grant.grants()}

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each name."""
        return dict(self._fences)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fences)

    def __len__(self) -> int:
        return len(self._fences)

    def __str__(self) -> str:
        return ", ".join(self._fences)

    def __repr__(self) -> str:
        return f"<Leases {list(self._fences)!r} held={self.held}>"
