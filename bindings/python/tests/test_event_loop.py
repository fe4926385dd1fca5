"""Who reads the answers of Redis: the event loop while it has calls under way, the library's thread otherwise."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest
from leasehold import connect

PAIRS = 1000


def sleeps() -> int:
    """How often the library's thread for I/O has slept so far."""
    for thread in Path("/proc/self/task").iterdir():
        lines = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line)
        if lines["Name"] == "leasehold-io":
            return int(lines["voluntary_ctxt_switches"])
    raise AssertionError("the library has no thread for I/O")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the library's thread reads")
def test_the_answer_to_a_call_wakes_no_other_thread(redis_url: str, namespace: str) -> None:
    async def work() -> None:
        async with connect(redis_url, namespace=namespace) as lock:
            async with lock("x"):
                pass
            before, since = sleeps(), time.monotonic()
            for _ in range(PAIRS):
                async with lock("x"):
                    pass
            # A thread that reads an answer sleeps once for each; this one looks after the event loop every few milliseconds.
            slept, took = sleeps() - before, time.monotonic() - since
            assert slept < PAIRS + took / 0.004, f"it slept {slept} times during {PAIRS} pairs and {took} s"

    asyncio.run(work())
    # Another event loop, of another thread.
    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    thread.join()


def test_an_event_loop_that_blocks_with_calls_under_way_delays_no_renewal(redis_url: str, namespace: str) -> None:
    async def work() -> None:
        async with connect(redis_url, namespace=namespace) as lock:
            async with lock("held", ttl=1) as held:
                for _ in range(100):
                    async with lock("x"):
                        pass
                under_way = asyncio.create_task(lock("other").acquire())
                await asyncio.sleep(0)
                time.sleep(3)
                assert held.held and held.remaining > 0.1
                await (await under_way).release()

            def take_turns() -> None:
                for _ in range(100):
                    lock("y").acquire_sync().release_sync()

            # A thread goes on too while the loop is blocked.
            thread = threading.Thread(target=take_turns)
            under_way = asyncio.create_task(lock("other").acquire())
            await asyncio.sleep(0)
            thread.start()
            thread.join(5)
            assert not thread.is_alive()
            await (await under_way).release()

    asyncio.run(work())
