"""Measures the package beside redis-py's Lock and python-redis-lock, on one Redis, in interleaved rounds.

Run it by `bindings/python/bench/run`, on a quiet machine: it builds the wheel with optimisations first.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import redis
import redis_lock
from leasehold import connect

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import servers  # noqa: E402

ROUNDS = 7
PAIRS = 2000
HANDOFFS = 60

Lock = Callable[[], AbstractContextManager[Any]]


def locks(url: str) -> dict[str, Lock]:
    """A client of each library, as its own documentation has it."""
    lock, client = connect(url), redis.Redis.from_url(url)
    return {
        "leasehold": lambda: lock("bench", wait=None),
        "redis-py Lock": lambda: client.lock("bench-redis-py", timeout=30),
        "python-redis-lock": lambda: redis_lock.Lock(client, "bench-python", expire=30),
    }


def pairs(lock: Lock) -> float:
    """Microseconds for taking and giving back a lock that nobody else wants."""
    began = time.perf_counter()
    for _ in range(PAIRS):
        with lock():
            pass
    return (time.perf_counter() - began) / PAIRS * 1e6


def hand_off(lock: Lock) -> float:
    """Microseconds, in the median, from the release of a lock to a thread that has waited for it."""
    took = list[float]()
    for _ in range(HANDOFFS):
        freed = 0.0
        began = threading.Event()

        def wait(began: threading.Event = began) -> None:
            began.set()
            with lock():
                took.append(time.perf_counter() - freed)

        with lock():
            waiter = threading.Thread(target=wait)
            waiter.start()
            began.wait()
            time.sleep(0.02)
            freed = time.perf_counter()
        waiter.join()
    return statistics.median(took) * 1e6


async def idle_waiters(url: str, count: int) -> float:
    """The share of a core that this many waiting tasks cost."""
    async with connect(url) as lock, lock("idle"):
        tasks = [asyncio.create_task(lock("idle", wait=None).acquire()) for _ in range(count)]
        while sum(lease.state == "waiting" for lease in await lock.list("idle", limit=count + 1)) < count:
            await asyncio.sleep(0.1)
        before, began = sum(os.times()[:2]), time.perf_counter()
        await asyncio.sleep(5)
        used = (sum(os.times()[:2]) - before) / (time.perf_counter() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return used


def measure(what: str, url: str, run: Callable[[Lock], float]) -> None:
    """Prints the median of the rounds, in which every library takes its turn."""
    all_locks = locks(url)
    results: dict[str, list[float]] = {name: [] for name in all_locks}
    for _ in range(ROUNDS):
        for name, lock in all_locks.items():
            results[name].append(run(lock))
    ours = statistics.median(results["leasehold"])
    for name, times in results.items():
        middle = statistics.median(times)
        print(f"{what:9} {name:18} {middle:10.0f} µs   {middle / ours:6.1f} times leasehold's", flush=True)


def main() -> None:
    with servers.redis() as url:
        measure("pair", url, pairs)
        measure("hand-off", url, hand_off)
        used = asyncio.run(idle_waiters(url, 1000))
        print(f"idle      1,000 waiting tasks use {used * 100:.1f} % of a core")


if __name__ == "__main__":
    main()
