"""An election of one leader."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator

from . import _native
from ._calls import run, wait
from ._errors import BackendUnavailable
from ._lease import Term
from ._lock import Lock
from ._records import Leader, one

logger = logging.getLogger("leasehold")

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0


class Election(Lock[Term]):
    """An election: one of the candidates leads, the others wait their turn.

    Iterating yields a term each time this candidate leads, and campaigns again after it. Acquiring leads for one term.
    """

    __slots__ = ("_instance", "_name")

    def __init__(self, instance: _native.Instance, name: str, native: _native.Lock) -> None:
        super().__init__(native, Term, "cancel")
        self._instance = instance
        self._name = name

    async def leader(self) -> Leader | None:
        """The current leader; None if nobody leads."""
        text = await run(self._instance.leader(self._name))
        return None if text is None else one(Leader, text)

    def leader_sync(self) -> Leader | None:
        """As `leader`, blocking."""
        text = wait(self._instance.leader(self._name))
        return None if text is None else one(Leader, text)

    def __aiter__(self) -> AsyncIterator[Term]:
        return _AsyncTerms(self)

    def __iter__(self) -> Iterator[Term]:
        return _Terms(self)


class _Pauses:
    """How long to wait after the backend could not be reached: longer each time, until it could be again."""

    def __init__(self) -> None:
        self._has_led = False
        self._next = _FIRST_PAUSE

    def succeeded(self) -> None:
        self._has_led = True
        self._next = _FIRST_PAUSE

    def after(self, problem: BackendUnavailable, election: str) -> float:
        """The pause; raises the problem if it is the first thing that happens, since the settings may be wrong."""
        if not self._has_led:
            raise problem
        pause, self._next = self._next, min(2 * self._next, _LONGEST_PAUSE)
        logger.warning("cannot campaign in %s, trying again in %.1f s: %s", election, pause, problem)
        return pause


class _AsyncTerms(AsyncIterator[Term]):
    def __init__(self, election: Election) -> None:
        self._election = election
        self._term: Term | None = None
        self._pauses = _Pauses()

    async def __anext__(self) -> Term:
        while True:
            try:
                if self._term is not None:
                    await self._term.release()
                self._term = await self._election.acquire()
            except BackendUnavailable as problem:
                await asyncio.sleep(self._pauses.after(problem, self._election._name))
            else:
                self._pauses.succeeded()
                return self._term


class _Terms(Iterator[Term]):
    def __init__(self, election: Election) -> None:
        self._election = election
        self._term: Term | None = None
        self._pauses = _Pauses()

    def __next__(self) -> Term:
        while True:
            try:
                if self._term is not None:
                    self._term.release_sync()
                self._term = self._election.acquire_sync()
            except BackendUnavailable as problem:
                time.sleep(self._pauses.after(problem, self._election._name))
            else:
                self._pauses.succeeded()
                return self._term
