"""Private servers for tests, on free ports and in temporary folders."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from leasehold import BackendUnavailable, Leasehold


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], what: str, limit: float = 20.0) -> None:
    """Waits for a condition; the limit is longer than it ever takes."""
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {limit} s"
        time.sleep(0.01)


def opens(lock: Leasehold) -> bool:
    """Whether it connects: a server may listen before it has come up."""
    try:
        lock.open_sync()
    except BackendUnavailable:
        return False
    return True


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _running(command: list[str], port: int, folder: str, stop: int = signal.SIGTERM) -> Generator[subprocess.Popen[bytes]]:
    with open(os.path.join(folder, "log"), "ab") as log:
        server = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port) or server.poll() is not None, command[0])
        assert server.poll() is None, open(os.path.join(folder, "log")).read()
        yield server
    finally:
        server.send_signal(stop)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def redis() -> Generator[str]:
    """A Redis; its URL."""
    folder, port = tempfile.mkdtemp(prefix="leasehold-redis-"), free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    try:
        with _running(command, port, folder):
            yield f"redis://127.0.0.1:{port}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres() -> Generator[str]:
    """A Postgres, which does not run as root; the URL of a database."""
    programs = os.path.dirname(sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))[-1])
    folder, port, prefix = tempfile.mkdtemp(prefix="leasehold-postgres-"), free_port(), list[str]()
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    data = os.path.join(folder, "data")
    initdb = [f"{programs}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
    settings = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"]
    server = [f"{programs}/postgres", "-D", data, "-p", str(port), "-k", folder, *settings]
    try:
        subprocess.run([*prefix, *initdb], cwd="/", check=True, capture_output=True)
        # By SIGTERM it would wait for its clients.
        with _running([*prefix, *server], port, folder, signal.SIGINT):
            yield f"postgres://postgres@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
