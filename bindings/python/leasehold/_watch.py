"""A stream of events about locks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from . import _native
from ._calls import run, wait
from ._records import Event, one


class Watch(AsyncIterator[Event], Iterator[Event]):
    """Events from now on, whichever process causes them, for `for` and `async for`.

    Watching begins with the first event that is asked for; as a context manager, when the block is entered.
    """

    __slots__ = ("_instance", "_name", "_native", "_prefix")

    def __init__(self, instance: _native.Instance, name: str | None, prefix: str | None) -> None:
        self._instance = instance
        self._name = name
        self._prefix = prefix
        self._native: _native.Watch | None = None

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event:
        native = self._native or await self._open()
        text = await run(native.next())
        if text is None:
            raise StopAsyncIteration
        return one(Event, text)

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Event:
        native = self._native or self._open_sync()
        text = wait(native.next())
        if text is None:
            raise StopIteration
        return one(Event, text)

    async def __aenter__(self) -> Watch:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._native = None

    def __enter__(self) -> Watch:
        self._open_sync()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._native = None

    async def _open(self) -> _native.Watch:
        opened: _native.Watch = await run(self._instance.watch(self._name, self._prefix))
        self._native = opened
        return opened

    def _open_sync(self) -> _native.Watch:
        opened: _native.Watch = wait(self._instance.watch(self._name, self._prefix))
        self._native = opened
        return opened
