"""What users of other locks complain of, and why it cannot happen here."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from leasehold import BackendUnavailable, Leasehold, LockBusy, LockLost, connect
from programs import program
from servers import redis, wait_until

Client = Callable[..., Leasehold]


def test_a_block_is_never_entered_without_the_lock(client: Client) -> None:
    """redlock-py returned False from `__enter__`, and the block ran all the same."""
    with client()("x"):
        entered = False
        with pytest.raises(LockBusy), client()("x", wait=0):
            entered = True
        assert not entered


def test_work_that_takes_longer_than_the_ttl_keeps_the_lock(client: Client) -> None:
    """redis-py's Lock ends under the work, which learns of it when it releases: LockNotOwnedError."""
    with client()("x", ttl=1) as lease:
        time.sleep(2.2)
        lease.check()


def test_renewing_counts_from_now(lock: Leasehold) -> None:
    """redis-py's `extend` adds to what is left, `reacquire` resets it; which one a caller means is easy to mistake."""
    with lock("x", ttl=10) as lease:
        lease.renew_sync(40)
        lease.renew_sync(20)
        assert lease.ttl == 20
        listed = lock.list_sync("x")[0]
        assert listed.expires_in is None or listed.expires_in <= 40.5


def test_a_loss_is_told_at_once_and_nobody_tries_to_release(client: Client) -> None:
    """node-redlock spends seconds on releasing what it has lost, and throws the error of that."""
    holder, operator = client(), client()
    with pytest.raises(LockLost):
        with holder("x") as lease:
            operator.evict_sync("x", lease.fence, "gone")
            assert lease.lost.wait(10)
            began = time.monotonic()
    assert time.monotonic() - began < 1


@pytest.fixture
def stopped_redis() -> Generator[tuple[str, Callable[[], None]]]:
    """A Redis of its own, and how to stop it for good."""
    with redis() as url:
        yield url, lambda: stop_server(url)


def stop_server(url: str) -> None:
    import redis as client_library

    client_library.Redis.from_url(url).shutdown(nosave=True, now=True, force=True)


def test_the_error_of_the_work_is_not_hidden_by_that_of_the_release(
    stopped_redis: tuple[str, Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    """filelock and portalocker show one of the two and lose the other."""
    url, stop = stopped_redis
    lock = connect(url)
    with pytest.raises(KeyError) as raised, lock("x"):
        stop()
        raise KeyError("mine")
    assert "could not release x" in raised.value.__notes__[0]
    assert "could not release x" in caplog.text


def test_a_backend_that_is_gone_is_an_error_of_the_call_that_needs_it(
    stopped_redis: tuple[str, Callable[[], None]],
) -> None:
    """node-redlock brings the process down by an error that nobody can catch."""
    url, stop = stopped_redis

    async def work() -> None:
        lock = connect(url)
        problems = list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        with pytest.raises(LockLost) as lost:
            async with lock("x", ttl=2):
                stop()
                await asyncio.sleep(60)
        assert lost.value.reason == "renew_timeout"
        with pytest.raises(BackendUnavailable):
            await lock("y", wait=0).acquire()
        assert problems == []

    asyncio.run(asyncio.wait_for(work(), 60))


def test_nothing_is_left_running_after_a_block(client: Client) -> None:
    """Renewal timers and threads of other locks live on after the block."""
    lock = client()
    with lock("x"):
        pass
    before = threading.active_count()

    async def work() -> None:
        for _ in range(20):
            async with lock("x", ttl=1):
                pass
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(work())
    assert threading.active_count() == before
    assert lock.list_sync("x") == []


def test_a_program_started_under_a_lock_does_not_keep_it(tmp_path: Path) -> None:
    """A daemon that is started under flock or filelock inherits the descriptor and holds the lock for ever."""
    with connect(f"file://{tmp_path}") as lock:
        with lock("x"):
            child = subprocess.Popen(["sleep", "60"], close_fds=False)
        try:
            with lock("x", wait=0):
                pass
        finally:
            child.kill()
            child.wait()


def test_a_killed_parent_with_a_forked_child_frees_its_lock(tmp_path: Path, namespace: str) -> None:
    """filelock's forked children keep the lock of a parent that died."""
    text = """
    with lock("x"):
        if os.fork() == 0:
            say(os.getpid())
            time.sleep(60)
            os._exit(0)
        time.sleep(60)
    """
    url = f"file://{tmp_path}"
    with program(text, url, namespace) as running:
        assert running.process.stdout is not None
        child = int(running.process.stdout.readline())
        try:
            os.kill(running.pid, signal.SIGKILL)
            with connect(url, namespace=namespace) as lock, lock("x", wait=5):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_busy_names_the_holder(client: Client) -> None:
    """Redlock libraries report a busy lock as a failed quorum."""
    with client("worker-7")("x", note="import"), pytest.raises(LockBusy, match="worker-7") as busy:
        client()("x", wait=0).acquire_sync()
    assert busy.value.holders[0].note == "import" and busy.value.holders[0].held_for >= 0


def test_a_wait_that_is_over_never_returns_a_lock(client: Client) -> None:
    """Timeouts that are taken for success, or that fire early."""
    one, two = client(), client()
    for _ in range(5):
        with one("x"):
            began = time.monotonic()
            with pytest.raises(LockBusy):
                two("x", wait=0.15).acquire_sync()
            assert time.monotonic() - began >= 0.15
        wait_until(lambda: one.list_sync("x") == [], "the queue")


def test_waiters_do_not_poll(redis_url: str, namespace: str) -> None:
    """Most locks on Redis ask again and again; redis-py's asks every 100 ms."""
    import redis as client_library

    server = client_library.Redis.from_url(redis_url)

    def commands() -> int:
        processed: int = server.info("stats")["total_commands_processed"]
        return processed

    async def work() -> None:
        async with connect(redis_url, namespace=namespace) as lock, lock("x"):
            tasks = [asyncio.create_task(lock("x", wait=None).acquire()) for _ in range(50)]
            while len(await lock.list("x")) < 51:
                await asyncio.sleep(0.05)
            before = commands()
            await asyncio.sleep(2)
            assert commands() - before < 20
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_the_package_starts_nothing_when_it_is_imported() -> None:
    """Importing a library should not start threads or open files."""
    text = "import leasehold, os, threading; print(len(os.listdir('/proc/self/task')))"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout == "1\n"
