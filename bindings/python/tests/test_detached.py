"""Leases that nobody renews: `auto_renew=False`."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from leasehold import Leasehold, LockBusy, LockLost, connect
from leasehold.testing import FakeClock, memory
from programs import program

Client = Callable[..., Leasehold]


def test_it_ends_with_its_ttl(client: Client) -> None:
    one, two = client(), client()
    # A busy machine may take a second to connect.
    two("other").acquire_sync().release_sync()
    lease = one("x", ttl=3, auto_renew=False).acquire_sync()
    assert lease.held and 0 < lease.remaining <= 3
    with pytest.raises(LockBusy):
        two("x", wait=0).acquire_sync()
    assert lease.lost.wait(20)
    assert not lease.held and lease.remaining == 0
    with pytest.raises(LockLost), lease:
        pass
    with two("x", wait=20) as next_one:
        assert next_one.fence > lease.fence


def test_a_task_is_cancelled_at_the_end_of_the_ttl(lock: Leasehold) -> None:
    async def work() -> None:
        with pytest.raises(LockLost):
            async with lock("x", ttl=1, auto_renew=False):
                await asyncio.sleep(60)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_it_can_be_renewed_and_released(client: Client) -> None:
    lock = client()
    with lock.semaphore("x", 2, permits=2, ttl=3, auto_renew=False) as lease:
        lease.renew_sync(60)
        assert lease.remaining > 30
        assert not lease.lost.wait(3.2)
        lease.check()
    assert not lease.held
    assert client().semaphore("x", 2, permits=2).try_acquire_sync() is not None


def test_a_fake_clock_ends_it() -> None:
    clock = FakeClock()
    lock = memory(clock=clock)
    lease = lock("x", ttl=30, auto_renew=False).acquire_sync()
    clock.advance(20)
    lease.renew_sync(30)
    clock.advance(20)
    assert lease.held
    clock.advance(20)
    assert lease.lost.wait(20) and not lease.held


def test_it_outlives_its_object_and_its_client(client: Client) -> None:
    one, two = client(), client()
    lease = one("x", ttl=60, auto_renew=False).acquire_sync()
    fence = lease.fence
    del lease
    gc.collect()
    one.close_sync()
    with pytest.raises(LockBusy) as busy:
        two("x", wait=0).acquire_sync()
    assert busy.value.holders[0].fence == fence


def test_another_process_goes_on_with_it(shared_url: str, namespace: str) -> None:
    text = """
    lease = lock("x", ttl=60, auto_renew=False).acquire_sync()
    say(lease.handle)
    """
    with program(text, shared_url, namespace) as running:
        assert running.process.stdout is not None
        handle = running.process.stdout.readline().strip()
        running.end()
    with connect(shared_url, namespace=namespace) as lock:
        assert lock("x").try_acquire_sync() is None
        environment = {**os.environ, "LEASEHOLD_URL": shared_url, "LEASEHOLD_NAMESPACE": namespace}
        environment["LEASEHOLD_LEASE"] = handle
        for verb in ("check", "release"):
            subprocess.run([sys.executable, "-m", "leasehold", verb], env=environment, check=True)
        with lock("x", wait=0):
            pass
