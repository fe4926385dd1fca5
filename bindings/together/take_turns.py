"""Tests that Rust, the command, Python, TypeScript and SQL share one lock, and get it in the order in which they asked.

Arguments: the Rust program and the TypeScript program that each take one turn; see `run`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import servers
from leasehold import Leasehold, connect

NAME = "singleton:printer"
PYTHON = f"from leasehold import connect\nwith connect()({NAME!r}, wait=None, note='python'): pass"
PROGRAMS = {
    "rust": [sys.argv[1]],
    "command": [sys.executable, "-m", "leasehold", "run", "--note", "command", "-w", "10m", NAME, "--", "true"],
    "python": [sys.executable, "-c", PYTHON],
    "typescript": ["node", sys.argv[2]],
}
ORDER = ["rust", "command", "python", "typescript", "typescript", "python", "command", "rust"]


class Sql:
    """The lock by SQL, which does not queue: it gets what nobody else has or waits for."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, function: str, *arguments: object) -> bool:
        values = ", ".join(f"'{argument}'" for argument in (NAME, *arguments))
        query = ["psql", self._url, "-Atqc", f"select leasehold.{function}({values})"]
        return subprocess.run(query, check=True, capture_output=True, text=True).stdout == "t\n"


@contextmanager
def programs() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that are started here, and have ended afterwards."""
    started = list[subprocess.Popen[bytes]]()
    try:
        yield started
    finally:
        for program in started:
            program.kill()
            program.wait()


def queue_up(lock: Leasehold, url: str, started: list[subprocess.Popen[bytes]]) -> None:
    """Starts the programs, each when the one before is in the queue."""
    for program in ORDER:
        started.append(subprocess.Popen(PROGRAMS[program], env={**os.environ, "LEASEHOLD_URL": url}))

        def is_queued() -> bool:
            return sum(lease.state == "waiting" for lease in lock.list_sync(NAME)) == len(started)

        servers.wait_until(is_queued, f"{program} in the queue", limit=60)


def check_order(lock: Leasehold, started: list[subprocess.Popen[bytes]]) -> None:
    for program in started:
        assert program.wait(60) == 0, program.args
    ended = [lease for lease in lock.history_sync(NAME) if lease.note in PROGRAMS and lease.fence is not None]
    order = [lease.note for lease in sorted(ended, key=lambda lease: lease.fence or 0)]
    assert order == ORDER, order


def take_turns(url: str) -> None:
    with connect(url) as lock, programs() as started:
        with lock(NAME):
            queue_up(lock, url, started)
        check_order(lock, started)


def take_turns_with_sql(url: str) -> None:
    sql = Sql(url)
    with connect(url + "?init=1") as lock, programs() as started:
        servers.wait_until(lambda: servers.opens(lock), "postgres", limit=60)
        assert sql.call("acquire_lock", "psql", 600)
        queue_up(lock, url, started)
        assert not sql.call("acquire_lock", "another psql", 600)
        assert sql.call("release_lock", "psql")
        check_order(lock, started)
        assert sql.call("acquire_lock", "psql", 600)
        assert lock(NAME).try_acquire_sync() is None
        assert sql.call("release_lock", "psql")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        take_turns(f"file://{folder}")
    with servers.redis() as url:
        take_turns(url)
    with servers.postgres() as url:
        take_turns_with_sql(url)
    print("file, redis and postgres: every program had its turn in order")


main()
