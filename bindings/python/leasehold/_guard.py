"""The decorator that runs a function under a lock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from ._errors import LockBusy
from ._lease import Lease
from ._lock import Lock

P = ParamSpec("P")
R = TypeVar("R")


class Guard:
    """Runs a function, async or not, under a lock."""

    def __init__(self, lock: Lock[Lease]) -> None:
        self._lock = lock

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        return _guarded(self._lock, function, is_skipping=False)


class SkippingGuard:
    """Runs a function under a lock, or returns None if the lock is busy."""

    def __init__(self, lock: Lock[Lease]) -> None:
        self._lock = lock

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]: ...

    def __call__(self, function: Callable[P, Any]) -> Callable[P, Any]:
        return _guarded(self._lock, function, is_skipping=True)


def _guarded(lock: Lock[Lease], function: Callable[P, Any], *, is_skipping: bool) -> Callable[P, Any]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("guard() would release the lock before a generator begins; take the lock inside it")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                lease = await lock.acquire()
            except LockBusy:
                if is_skipping:
                    return None
                raise
            async with lease:
                return await function(*args, **kwargs)

        return guarded_async

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            lease = lock.acquire_sync()
        except LockBusy:
            if is_skipping:
                return None
            raise
        with lease:
            return function(*args, **kwargs)

    return guarded
