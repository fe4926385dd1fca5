"""Workers that are killed, stopped and cut off: no two of them ever believe that they hold the lock at the same time.

`LEASEHOLD_FAULTS=200` makes that many faults on each backend.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from programs import Program

FAULTS = int(os.environ.get("LEASEHOLD_FAULTS", "10"))
WORKERS = 3
TTL = 2

# Each grant has a record in the worker's file: its fence, when the worker first believed in it, and when it last did.
# The first is read after the question and the last before it, so that two records overlap only if the beliefs do.
WORKER = f"""
import random, struct
def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)
log = os.open(os.environ["LEASEHOLD_LOG"], os.O_WRONLY | os.O_CREAT)
def work():
    with lock("x", ttl={TTL}, wait=None) as lease:
        # Some of the work takes longer than the ttl, so that a fault can outlast the lease.
        length = 3 if random.random() < 0.125 else random.uniform(0.01, 0.3)
        at, fence, first, until = os.fstat(log).st_size, lease.fence, None, now() + length
        while True:
            last = now()
            if not lease.held:
                return
            first = first or now()
            os.pwrite(log, struct.pack("<qdd", fence, first, last), at)
            # Asked once more after the end of the work: the process may have been stopped meanwhile.
            if last >= until:
                return
            time.sleep(0.002)
say("began")
while True:
    try:
        work()
    except (leasehold.LockLost, leasehold.BackendUnavailable):
        pass
"""


class Proxy(threading.Thread):
    """Passes bytes to a server, and none while it is cut."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._is_open = threading.Event()
        self._is_open.set()
        self._is_over = False

    def run(self) -> None:
        while not self._is_over:
            self._is_open.wait()
            ready, _, _ = select.select([self._listener, *self._pairs], [], [], 0.05)
            if not self._is_open.is_set():
                continue
            for one in ready:
                self._accept() if one is self._listener else self._pass(one)

    def _accept(self) -> None:
        client, server = self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._target))
        self._pairs[client], self._pairs[server] = server, client

    def _pass(self, one: socket.socket) -> None:
        other = self._pairs.get(one)
        if other is None:
            return
        try:
            data = one.recv(65536)
            other.sendall(data)
        except OSError:
            data = b""
        if not data:
            for end in (one, other):
                del self._pairs[end]
                end.close()

    def cut(self, length: float) -> None:
        self._is_open.clear()
        time.sleep(length)
        self._is_open.set()

    def end(self) -> None:
        self._is_over = True
        self._is_open.set()
        self.join()
        for end in (self._listener, *self._pairs):
            end.close()


@pytest.fixture(params=["redis", "postgres"])
def server_url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def proxy(server_url: str) -> Generator[Proxy]:
    running = Proxy(urlsplit(server_url).port or 0)
    running.start()
    yield running
    running.end()


def records(folder: Path) -> list[tuple[int, float, float]]:
    """Fence, first and last moment of belief of every grant, by fence."""
    found = list[tuple[int, float, float]]()
    for path in folder.glob("*.log"):
        data = path.read_bytes()
        found += struct.iter_unpack("<qdd", data[: len(data) // 24 * 24])
    return sorted(found)


def overlaps(found: list[tuple[int, float, float]]) -> list[tuple[object, object]]:
    """Pairs of neighbours of which the earlier was believed in after the later had been."""
    return [(one, two) for one, two in zip(found, found[1:]) if one[2] > two[1] or one[0] == two[0]]


def test_the_checker_finds_an_overlap() -> None:
    assert overlaps([(1, 0.0, 1.0), (2, 1.1, 2.0)]) == []
    assert overlaps([(1, 0.0, 1.2), (2, 1.1, 2.0)]) == [((1, 0.0, 1.2), (2, 1.1, 2.0))]


def test_no_two_workers_believe_at_once(
    server_url: str, proxy: Proxy, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    direct = server_url
    cut_off = server_url.replace(f":{urlsplit(server_url).port}", f":{proxy.port}")
    started = 0

    def start(at: int) -> Program:
        nonlocal started
        started += 1
        monkeypatch.setenv("LEASEHOLD_LOG", str(tmp_path / f"{started}.log"))
        worker = Program(WORKER, cut_off if at == 0 else direct, namespace)
        worker.expect("began")
        return worker

    workers = [start(at) for at in range(WORKERS)]
    try:
        for number in range(FAULTS):
            time.sleep(chance.uniform(0.05, 0.4))
            at = chance.randrange(WORKERS)
            kind = ("kill", "stop", "cut")[number % 3]
            if kind == "cut":
                proxy.cut(chance.choice([0.3, TTL + 0.5]))
            elif kind == "stop":
                os.kill(workers[at].pid, signal.SIGSTOP)
                time.sleep(chance.choice([0.2, TTL + 0.5]))
                os.kill(workers[at].pid, signal.SIGCONT)
            else:
                os.kill(workers[at].pid, signal.SIGKILL)
                workers[at].end(-signal.SIGKILL)
                workers[at] = start(at)
        time.sleep(TTL + 1)
        # Work of seconds, one after the other, may have left little room for grants.
        for _ in range(300):
            if len(records(tmp_path)) > FAULTS:
                break
            time.sleep(0.2)
        for worker in workers:
            assert worker.process.poll() is None, f"a worker ended: {worker.process.communicate()}"
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()
    found = records(tmp_path)
    assert len(found) > FAULTS, f"only {len(found)} grants"
    assert overlaps(found) == []
    print(f"{urlsplit(server_url).scheme}: {FAULTS} faults, {len(found)} grants")
