"""Locks in memory for tests, with a clock that a test can turn."""

from __future__ import annotations

import uuid

from .. import _native
from .._connect import Leasehold
from .._options import DEFAULT, Wait


class FakeClock:
    """A clock that stands still until a test advances it."""

    def __init__(self) -> None:
        self._native = _native.Clock()

    def advance(self, seconds: float) -> None:
        """Lets this time pass: deadlines that come with it have come."""
        self._native.advance(seconds)


def memory(
    name: str | None = None,
    *,
    holder: str | None = None,
    ttl: float | None = None,
    wait: Wait = DEFAULT,
    clock: FakeClock | None = None,
) -> Leasehold:
    """Returns locks in the memory of this process: those of this name, or new ones that nobody else has.

    Two with the same name are two clients of one backend; give both the same clock, if any.
    """
    native = None if clock is None else clock._native
    return Leasehold(f"memory:{name or uuid.uuid4().hex}", holder=holder, ttl=ttl, wait=wait, clock=native)


__all__ = ["FakeClock", "memory"]
