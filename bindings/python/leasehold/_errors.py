"""The exceptions of the package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """One of those who held a lock that was busy."""

    name: str
    """The holder, `user@host:pid:random` unless it chose a name."""
    mode: str
    """`exclusive`, `shared`, `permit` or `leader`."""
    fence: int
    held_for: float
    """Seconds since it got the lock."""
    note: str | None


class LeaseholdError(Exception):
    """The base of every exception of this package."""

    kind: str = "error"
    """The kind of error in the words of the Rust library, such as `outcome_unknown`."""


class NotAcquired(LeaseholdError):
    """The lock was not acquired."""

    holders: list[Holder]
    """Who held it, as far as the backend said."""
    waited: float
    """Seconds spent waiting."""

    def __init__(self, message: str = "", holders: Iterable[Holder] = (), waited: float = 0.0) -> None:
        super().__init__(message)
        self.holders = list(holders)
        self.waited = waited


class LockBusy(NotAcquired, TimeoutError):
    """Others hold the lock: they did at once (`wait=0`), or still do when the wait was over."""


class LockLost(LeaseholdError):
    """The lock is no longer held: stop the work that it protects."""

    reason: str
    """`renew_timeout`, `evicted`, `max_hold`, `gone`, `released`, or `forked` in a child that inherited the lease."""
    held_for: float
    """Seconds between the grant and this exception."""

    def __init__(self, message: str = "", reason: str = "gone", held_for: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.held_for = held_for


class BackendUnavailable(LeaseholdError, ConnectionError):
    """The backend cannot be reached, did not answer, or refused access."""


class NotSupported(LeaseholdError):
    """The backend cannot do this."""


class ConfigError(LeaseholdError, ValueError):
    """A URL, a name, an option, or a use of one name as two kinds of lock, that cannot work."""


class Closed(LeaseholdError):
    """The connection was closed, or belongs to the parent of this forked process: connect again."""


_CLASSES: dict[str, type[LeaseholdError]] = {
    "busy": LockBusy,
    "wait_elapsed": LockBusy,
    "lost": LockLost,
    "shape_mismatch": ConfigError,
    "invalid_name": ConfigError,
    "invalid_config": ConfigError,
    "unsupported": NotSupported,
    "closed": Closed,
}


def from_native(kind: str, message: str, holders: list[tuple[str, str, int, float, str | None]]) -> LeaseholdError:
    """Makes the exception for an error of the library."""
    error = _CLASSES.get(kind, BackendUnavailable)(message)
    error.kind = kind
    if isinstance(error, NotAcquired):
        error.holders = [Holder(*holder) for holder in holders]
    return error
