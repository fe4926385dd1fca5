"""Runs native calls: awaited in an event loop, or waited for in a thread."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ._native import Call, Mailbox


class LoopCalls:
    """The calls of one event loop that have not ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._mailbox = Mailbox()
        self._pending: dict[int, tuple[Call, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        loop.add_reader(self._mailbox.fileno(), self._take)
        answers = self._mailbox.answers_fileno()
        if answers is not None:
            loop.add_reader(answers, self._read)

    def start(self, call: Call, done: Callable[[], None]) -> int | None:
        """Begins a call. `done` runs in the loop when it has ended; returns None if it has ended already."""
        number = next(self._numbers)
        if self._mailbox.start(call, number):
            return None
        self._pending[number] = (call, done)
        return number

    def forget(self, number: int) -> None:
        """Polls a call no more, if it has not ended."""
        self._pending.pop(number, None)

    def _take(self) -> None:
        self._poll(self._mailbox.take())

    def _read(self) -> None:
        """Reads answers; what the callers ask next, in this turn of the loop, is sent together."""
        numbers, waits = self._mailbox.read()
        self._poll(numbers)
        if waits:
            asyncio.get_running_loop().call_soon(self._mailbox.callers_ran)

    def _poll(self, numbers: list[int]) -> None:
        for number in numbers:
            pending = self._pending.get(number)
            if pending is not None and pending[0].poll():
                del self._pending[number]
                pending[1]()


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls] = WeakKeyDictionary()


def calls_of(loop: asyncio.AbstractEventLoop) -> LoopCalls:
    """The calls of this event loop."""
    calls = _loops.get(loop)
    if calls is None:
        calls = _loops[loop] = LoopCalls(loop)
    return calls


async def run(call: Call) -> Any:
    """Awaits a call. If the task is cancelled meanwhile, the call leaves nothing behind."""
    loop = asyncio.get_running_loop()
    calls = calls_of(loop)
    ended = loop.create_future()

    def done() -> None:
        if not ended.done():
            ended.set_result(None)

    number = calls.start(call, done)
    if number is not None:
        try:
            await ended
        except BaseException:
            # Whatever the call has got meanwhile is given back.
            calls.forget(number)
            call.cancel()
            raise
    return call.result()


def wait(call: Call) -> Any:
    """Blocks this thread until a call has ended."""
    call.wait()
    return call.result()
