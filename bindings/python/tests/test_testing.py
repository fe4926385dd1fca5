"""What the package offers to tests of its users."""

from __future__ import annotations

import asyncio

import pytest
from leasehold import Leasehold, LockLost
from leasehold.testing import FakeClock, memory


def test_the_fixture_is_found(leasehold_memory: Leasehold) -> None:
    with leasehold_memory("x"):
        assert leasehold_memory("x").try_acquire_sync() is None


def test_memory_is_private_unless_it_has_a_name() -> None:
    with memory()("x"), memory()("x", wait=0):
        pass
    with memory("shared")("x"):
        assert memory("shared")("x").try_acquire_sync() is None


def test_a_clock_that_a_test_advances() -> None:
    clock = FakeClock()
    lock = memory("clock", clock=clock)
    with pytest.raises(LockLost) as lost, lock("x", max_hold=20) as lease:
        clock.advance(19)
        lease.check()
        clock.advance(2)
        assert lease.lost.wait(10)
    assert lost.value.reason == "max_hold"


def test_a_clock_that_is_advanced_under_a_task() -> None:
    async def work() -> None:
        clock = FakeClock()
        lock = memory("clock2", clock=clock)
        async with lock("x", max_hold=20):
            clock.advance(21)
            await asyncio.sleep(30)

    with pytest.raises(LockLost):
        asyncio.run(work())
