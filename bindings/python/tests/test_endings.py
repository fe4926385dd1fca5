"""Ends of processes: with leases held, by Ctrl-C, in daemon threads, by kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leasehold import connect
from programs import program
from servers import wait_until

CRASHES = ("Fatal", "panicked", "Traceback", "Segmentation")


def assert_quiet(errors: str) -> None:
    assert not any(word in errors for word in CRASHES), errors


@pytest.mark.parametrize(
    "text",
    [
        'lease = lock("x").acquire_sync()',
        'lease = asyncio.run(lock("x").acquire())',
        'leases = [lock(f"x{n}").acquire_sync() for n in range(50)]',
        # A daemon thread that holds the lock, one that waits for it, and one that waits for its loss.
        """
        def hold():
            with lock("x") as lease:
                threading.Thread(target=lease.lost.wait, daemon=True).start()
                ready.set()
                time.sleep(60)
        ready = threading.Event()
        threading.Thread(target=hold, daemon=True).start()
        ready.wait()
        for _ in range(3):
            threading.Thread(target=lambda: lock("x", wait=None).acquire_sync(), daemon=True).start()
        time.sleep(0.3)
        """,
        # Threads that call without a pause while the interpreter ends.
        """
        def spin(number):
            while True:
                with lock(f"y{number}"):
                    pass
        for number in range(3):
            threading.Thread(target=spin, args=(number,), daemon=True).start()
        time.sleep(0.3)
        """,
        # An event loop in a daemon thread.
        """
        async def work():
            async with lock("x"):
                asyncio.create_task(lock("x", wait=None).acquire())
                await asyncio.sleep(0.1)
                ready.set()
                await asyncio.sleep(60)
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(work()), daemon=True).start()
        ready.wait()
        """,
        'lock("x").__enter__(); sys.exit(0)',
    ],
    ids=["lease", "lease of a task", "many leases", "daemon threads", "busy threads", "event loop", "exit"],
)
def test_the_interpreter_ends(text: str, backend: str, url: str, namespace: str) -> None:
    with program(text, url, namespace) as running:
        assert_quiet(running.end(limit=20))


def queue(url: str, namespace: str) -> list[str]:
    with connect(url, namespace=namespace) as lock:
        return [lease.state for lease in lock.list_sync("x")]


@pytest.mark.parametrize(
    "text",
    [
        """
        say("began")
        try:
            with lock("x", wait=None):
                say("entered")
        except KeyboardInterrupt:
            say("interrupted")
        """,
        """
        async def work():
            say("began")
            async with lock("x", wait=None):
                say("entered")
        try:
            asyncio.run(work())
        except KeyboardInterrupt:
            say("interrupted")
        """,
    ],
    ids=["thread", "task"],
)
def test_ctrl_c_ends_a_wait(text: str, shared_url: str, namespace: str) -> None:
    with connect(shared_url, namespace=namespace) as lock, lock("x"):
        with program(text, shared_url, namespace) as running:
            running.expect("began")
            wait_until(lambda: queue(shared_url, namespace) == ["holding", "waiting"], "the queue")
            began = time.monotonic()
            os.kill(running.pid, signal.SIGINT)
            running.expect("interrupted")
            assert time.monotonic() - began < 2
            wait_until(lambda: queue(shared_url, namespace) == ["holding"], "the queue", limit=5)
            assert_quiet(running.end())


def test_ctrl_c_under_a_lock_gives_it_back(shared_url: str, namespace: str) -> None:
    text = """
    try:
        with lock("x"):
            say("entered")
            time.sleep(60)
    except KeyboardInterrupt:
        say("interrupted")
    """
    with program(text, shared_url, namespace) as running:
        running.expect("entered")
        os.kill(running.pid, signal.SIGINT)
        running.expect("interrupted")
        running.end()
    with connect(shared_url, namespace=namespace) as lock, lock("x", wait=0):
        wait_until(lambda: len(lock.history_sync("x")) == 1, "history")
        assert lock.history_sync("x")[0].problem == "KeyboardInterrupt"


def test_a_handler_that_does_not_raise_does_not_end_the_wait(shared_url: str, namespace: str) -> None:
    text = """
    signal.signal(signal.SIGUSR1, lambda *_: say("handled"))
    say("began")
    with lock("x", wait=None):
        say("entered")
    """
    with connect(shared_url, namespace=namespace) as lock, program(text, shared_url, namespace) as running:
        with lock("x"):
            running.expect("began")
            wait_until(lambda: queue(shared_url, namespace) == ["holding", "waiting"], "the queue")
            os.kill(running.pid, signal.SIGUSR1)
            running.expect("handled")
        running.expect("entered")
        running.end()


def test_a_killed_holder_delays_others_by_its_ttl_at_most(shared_url: str, namespace: str) -> None:
    text = 'lease = lock("x", ttl=2).acquire_sync(); say("held"); time.sleep(60)'
    with program(text, shared_url, namespace) as running:
        running.expect("held")
        with connect(shared_url, namespace=namespace) as lock:
            os.kill(running.pid, signal.SIGKILL)
            began = time.monotonic()
            with lock("x", wait=20):
                took = time.monotonic() - began
            assert took < (1 if shared_url.startswith("file:") else 8), took


def test_a_busy_interpreter_does_not_stop_renewals(shared_url: str, namespace: str) -> None:
    text = """
    lease = lock("x", ttl=1).acquire_sync()
    say("held")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        sum(range(30_000_000))  # keeps the interpreter's lock until it is done
    lease.check()
    say("still held")
    """
    with connect(shared_url, namespace=namespace) as lock, program(text, shared_url, namespace) as running:
        running.expect("held")
        with pytest.raises(TimeoutError):
            lock("x", wait=2.5).acquire_sync()
        running.expect("still held")
        running.end()


def test_the_command_comes_with_the_package(tmp_path: Path) -> None:
    environment = {**os.environ, "LEASEHOLD_URL": f"file://{tmp_path}"}
    command = [sys.executable, "-m", "leasehold", "run", "x", "--", "sh", "-c", "kill -XFSZ $$; echo not killed"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 128 + signal.SIGXFSZ, ended
    with connect(f"file://{tmp_path}") as lock, lock("x"):
        busy = subprocess.run(
            [sys.executable, "-m", "leasehold", "run", "-n", "x", "--", "true"], env=environment, capture_output=True
        )
        assert busy.returncode == 75, busy
