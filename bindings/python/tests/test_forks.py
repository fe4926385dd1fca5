"""Forked children: what they inherit is not theirs, and they connect by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from programs import program
from servers import free_port, wait_until

CHECKS = """
def check_inherited(lease):
    # The child is another process: nothing of its parent's is its own.
    assert not lease.held and lease.remaining == 0 and lease.lost.is_set()
    try:
        lease.check()
    except leasehold.LockLost as lost:
        assert lost.reason == "forked"
    else:
        raise AssertionError("the child believes that it holds the lock")
    for call in (lambda: lock("other").acquire_sync(), lambda: lock.list_sync(), lambda: lease.release_sync() or lock.close_sync()):
        try:
            call()
        except leasehold.Closed as closed:
            assert "connect again" in str(closed)
        else:
            raise AssertionError("the child used the connection of its parent")
    with connect(lock.url, namespace=lock.namespace) as own:
        assert own("x").try_acquire_sync() is None
        with own("of the child"):
            pass
"""


def test_os_fork(shared_url: str, namespace: str) -> None:
    text = CHECKS + """
with lock("x") as lease:
    for way_out in (os._exit, sys.exit):
        child = os.fork()
        if child == 0:
            check_inherited(lease)
            way_out(0)
        assert os.waitpid(child, 0)[1] == 0
        lease.check()
        lease.renew_sync(20)
    assert connect(lock.url, namespace=lock.namespace)("x").try_acquire_sync() is None
say("done")
"""
    with program(text, shared_url, namespace) as running:
        running.expect("done")
        running.end()


def test_a_child_opens_what_its_parent_had_not_opened(shared_url: str, namespace: str) -> None:
    text = """
    early = lock("x", wait=None)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            with early as lease:
                lease.check()
                time.sleep(0.05)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    with early:
        say("done")
    """
    with program(text, shared_url, namespace) as running:
        running.expect("done")
        running.end()


def test_multiprocessing(shared_url: str, namespace: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    text = CHECKS + f"""
import multiprocessing
def inherited():
    check_inherited(lease)
def count(number):
    global own
    if "own" not in globals():
        own = connect(lock.url, namespace=lock.namespace, wait=None)
    with own("counter"):
        value = int(open({str(counter)!r}).read())
        time.sleep(0.001)
        open({str(counter)!r}, "w").write(str(value + 1))
context = multiprocessing.get_context("fork")
with lock("x") as lease:
    child = context.Process(target=inherited)
    child.start()
    child.join()
    assert child.exitcode == 0
    lease.check()
    with context.Pool(4) as pool:
        pool.map(count, range(60))
    lease.check()
say("done")
"""
    with program(text, shared_url, namespace) as running:
        running.expect("done")
        running.end()
    assert counter.read_text() == "60"


def test_a_fork_under_a_running_event_loop(shared_url: str, namespace: str) -> None:
    text = CHECKS + """
async def work():
    async with lock("x") as lease:
        child = os.fork()
        if child == 0:
            check_inherited(lease)
            os._exit(0)
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            await asyncio.sleep(0.01)
        lease.check()
        await lease.renew(20)
    say("done")
asyncio.run(work())
"""
    with program(text, shared_url, namespace) as running:
        running.expect("done")
        running.end()


def test_gunicorn(shared_url: str, namespace: str, tmp_path: Path) -> None:
    """Preloaded workers share an object that the master made; each connects by itself."""
    counter, port = tmp_path / "counter", free_port()
    counter.write_text("0")
    (tmp_path / "shop.py").write_text(f"""
import os, time
from leasehold import connect

lock = connect(wait=None)

@lock.guard("counter")
def count():
    value = int(open({str(counter)!r}).read())
    time.sleep(0.001)
    open({str(counter)!r}, "w").write(str(value + 1))

def app(environ, start_response):
    count()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
""")
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", f"127.0.0.1:{port}", "shop:app"]
    environment = {**os.environ, "LEASEHOLD_URL": shared_url, "LEASEHOLD_NAMESPACE": namespace}
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)

    def ask(_: int = 0) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
            body: bytes = answer.read()
            return body

    def answers() -> bool:
        try:
            return bool(ask())
        except OSError:
            return False

    try:
        wait_until(answers, "gunicorn")
        before = int(counter.read_text())
        with ThreadPoolExecutor(6) as pool:
            workers = set(pool.map(ask, range(60)))
        assert len(workers) > 1, "one worker did everything"
        assert int(counter.read_text()) == before + 60
    finally:
        began = time.monotonic()
        server.terminate()
        assert server.wait(20) == 0, (tmp_path / "log").read_text()
        assert time.monotonic() - began < 15
