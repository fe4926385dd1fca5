"""Measures the package beside redis-py's Lock and python-redis-lock, on one Redis, in interleaved rounds.

Run it by `bindings/python/bench/run`, on a quiet machine: it builds the wheel with optimisations first. Every library has one
client with its default settings. A ratio is the median of those of each round, in which every library takes its turn.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import local
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis_lock
from leasehold import connect

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import servers  # noqa: E402

ROUNDS = int(os.environ.get("ROUNDS", "11"))
SECONDS = float(os.environ.get("SECONDS_OF_A_ROUND", "0.3"))
HANDOFFS = 9

# The floor.
BARE = "bare commands"

# Callers that take pairs side by side.
THREADS = 16
TASKS = 64

Lock = Callable[..., AbstractContextManager[Any]]
AsyncLock = Callable[..., AbstractAsyncContextManager[Any]]


def locks(url: str) -> dict[str, Lock]:
    """A client of each library, as its own documentation has it."""
    lock, client = connect(url), redis.Redis.from_url(url)
    return {
        "leasehold": lambda number=0: lock(f"bench:{number}", wait=None),
        "redis-py Lock": lambda number=0: client.lock(f"bench-redis-py:{number}", timeout=30),
        "python-redis-lock": lambda number=0: redis_lock.Lock(client, f"bench-python:{number}", expire=30),
    }


FREE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


def bare_commands(url: str) -> Callable[..., None]:
    """Sends commands on a socket of each thread, without a client library: the floor of all that waits for the server."""
    place = urlsplit(url)
    threads = local()

    def send(*words: str) -> None:
        if not hasattr(threads, "connection"):
            threads.connection = socket.create_connection((place.hostname, place.port))
            threads.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        command = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        threads.connection.sendall(f"*{len(words)}\r\n{command}".encode())
        threads.connection.recv(64)

    return send


def bare_pairs(url: str) -> Lock:
    """What a pair cannot do without: a command that takes the lock, and one that gives it back."""
    send = bare_commands(url)

    @contextmanager
    def lock(number: int = 0) -> Generator[None]:
        send("SET", f"bench-bare:{number}", "token", "NX", "PX", "30000")
        yield
        send("EVAL", FREE, "1", f"bench-bare:{number}", "token")

    return lock


def bare_hand_offs(url: str) -> Lock:
    """What a hand-off cannot do without: a command by which another process, which has waited, gets an answer."""
    send = bare_commands(url)

    @contextmanager
    def lock() -> Generator[None]:
        send("BLPOP", "bench-token", "0")
        yield
        send("LPUSH", "bench-token", "token")

    return lock


def hand_off_locks(url: str) -> dict[str, Lock]:
    return {**locks(url), BARE: bare_hand_offs(url)}


def async_locks(url: str) -> dict[str, AsyncLock]:
    """The same for asyncio, which python-redis-lock does not support."""
    lock, client = connect(url), redis.asyncio.Redis.from_url(url)
    return {
        "leasehold": lambda number=0: lock(f"bench:{number}", wait=None),
        "redis.asyncio Lock": lambda number=0: client.lock(f"bench-redis-asyncio:{number}", timeout=30),
    }


def pair(lock: Lock, number: int = 0) -> float:
    """Microseconds for taking and giving back a lock that nobody else wants."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for _ in range(10):
            with lock(number):
                pass
        count += 10
    return (time.perf_counter() - began) / count * 1e6


def threads_pair(lock: Lock) -> float:
    """The same by threads that share a client, each with a lock of its own."""
    with ThreadPoolExecutor(THREADS) as pool:
        took = list(pool.map(partial(pair, lock), range(THREADS)))
    return 1 / sum(1 / each for each in took)


async def async_pair(lock: AsyncLock, number: int = 0) -> float:
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for _ in range(10):
            async with lock(number):
                pass
        count += 10
    return (time.perf_counter() - began) / count * 1e6


async def tasks_pair(lock: AsyncLock) -> float:
    """The same by tasks that share a client, each with a lock of its own."""
    took = await asyncio.gather(*(async_pair(lock, number) for number in range(TASKS)))
    return 1 / sum(1 / each for each in took)


def be_the_waiter(url: str, name: str) -> None:
    """Waits for the lock at each line of standard input, and prints when it got it."""
    lock = hand_off_locks(url)[name]
    with lock():
        pass
    print("ready", flush=True)
    for _ in sys.stdin:
        print("waiting", flush=True)
        with lock():
            got = time.perf_counter()
        print(got, flush=True)


class Waiter:
    """A process that waits for the lock of one library."""

    def __init__(self, url: str, name: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, __file__, url, name], stdin=pipe, stdout=pipe, text=True)
        self._expect("ready")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _expect(self, word: str) -> None:
        assert self._line() == word

    def wait(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("wait\n")
        self._process.stdin.flush()
        self._expect("waiting")

    def got(self) -> float:
        return float(self._line())

    def end(self) -> None:
        self._process.communicate()


def hand_off(lock: Lock, waiter: Waiter) -> float:
    """Microseconds, in the median, from the release of a lock to another process that has waited for it."""
    took = list[float]()
    for _ in range(HANDOFFS):
        with lock():
            waiter.wait()
            # Until it sleeps in its queue.
            time.sleep(0.03)
            freed = time.perf_counter()
        took.append(waiter.got() - freed)
    return statistics.median(took) * 1e6


async def async_hand_off(lock: AsyncLock) -> float:
    """Microseconds, in the median, from the release of a lock to a task that has waited for it."""
    took = list[float]()
    for _ in range(HANDOFFS):

        async def wait() -> float:
            async with lock():
                return time.perf_counter()

        async with lock():
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0.03)
            freed = time.perf_counter()
        took.append(await waiting - freed)
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


def compare(what: str, measures: dict[str, Callable[[], float]]) -> None:
    """Prints the median of the rounds, in which every library takes its turn."""
    results: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(ROUNDS + 1):
        for name, measure in measures.items():
            took = measure()
            # The first round connects.
            if number > 0:
                results[name].append(took)
    for name, times in results.items():
        ratio = statistics.median(theirs / ours for theirs, ours in zip(times, results["leasehold"]))
        print(f"{what:17} {name:18} {statistics.median(times):10.0f} µs   {ratio:6.2f} times leasehold's", flush=True)


def main() -> None:
    with servers.redis() as url, asyncio.Runner() as runner:
        in_tasks = async_locks(url)
        pairs = {**locks(url), BARE: bare_pairs(url)}
        compare("pair", {name: partial(pair, lock) for name, lock in pairs.items()})
        compare(f"pair, {THREADS} threads", {name: partial(threads_pair, lock) for name, lock in pairs.items()})
        bare_commands(url)("LPUSH", "bench-token", "token")
        hand_offs = hand_off_locks(url)
        waiters = {name: Waiter(url, name) for name in hand_offs}
        compare("hand-off", {name: partial(hand_off, lock, waiters[name]) for name, lock in hand_offs.items()})
        for waiter in waiters.values():
            waiter.end()

        def in_loop(measure: Callable[[AsyncLock], Coroutine[Any, Any, float]]) -> dict[str, Callable[[], float]]:
            def run(lock: AsyncLock) -> float:
                return runner.run(measure(lock))

            return {name: partial(run, lock) for name, lock in in_tasks.items()}

        compare("async pair", in_loop(async_pair))
        compare(f"pair, {TASKS} tasks", in_loop(tasks_pair))
        compare("async hand-off", in_loop(async_hand_off))
        used = runner.run(idle_waiters(url, 1000))
        print(f"idle            1,000 waiting tasks use {used * 100:.1f} % of a core")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        be_the_waiter(*sys.argv[1:])
    else:
        main()
