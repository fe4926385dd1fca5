"""Locks in asyncio: `async with`, cancellation, and what the loss of a lock does to a task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import leasehold
import pytest
from leasehold import Leasehold, LockBusy, LockLost

Client = Callable[..., Leasehold]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def waiters(lock: Leasehold, name: str, count: int) -> None:
    async with asyncio.timeout(10):
        while sum(lease.state == "waiting" for lease in await lock.list(name)) != count:
            await asyncio.sleep(0.01)


async def evict_when_held(operator: Leasehold, name: str) -> None:
    async with asyncio.timeout(10):
        while True:
            for lease in await operator.list(name):
                if lease.fence is not None and await operator.evict(name, lease.fence, "host gone"):
                    return
            await asyncio.sleep(0.01)


def test_a_block_holds_the_lock(client: Client) -> None:
    async def work() -> None:
        one, two = client("one"), client("two")
        shared = one("x")
        async with shared as lease:
            assert lease.held and lease.holder == "one"
            assert await two("x").try_acquire() is None
            with pytest.raises(LockBusy) as busy:
                async with two("x", wait=0.2):
                    pass
            assert [held.name for held in busy.value.holders] == ["one"] and busy.value.waited >= 0.2
            await lease.renew(20)
            assert lease.ttl == 20
        with shared as again:
            assert again.fence > lease.fence
        if free := await two("x").try_acquire():
            async with free:
                free.check()
        assert free is not None and not free.held

    run(work())


def test_tasks_take_turns(lock: Leasehold) -> None:
    async def work() -> None:
        inside, counted = 0, 0
        shared = lock("x", wait=None)

        async def count() -> None:
            nonlocal inside, counted
            for _ in range(5):
                async with shared:
                    inside += 1
                    await asyncio.sleep(0)
                    assert inside == 1
                    counted += 1
                    inside -= 1

        await asyncio.gather(*(count() for _ in range(10)))
        assert counted == 50

    run(work())


def test_the_loss_of_the_lock_cancels_the_block(client: Client) -> None:
    async def work() -> None:
        holder, operator = client(), client()
        evicting = asyncio.create_task(evict_when_held(operator, "x"))
        cancelled, began = False, time.monotonic()
        with pytest.raises(LockLost) as lost:
            async with holder("x"):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled = True
                    raise
        assert cancelled and lost.value.reason == "evicted" and time.monotonic() - began < 20
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(0)
        await evicting

    run(work())


def test_a_block_that_swallows_the_cancellation_still_learns_of_the_loss(client: Client) -> None:
    async def work() -> None:
        holder, operator = client(), client()
        evicting = asyncio.create_task(evict_when_held(operator, "x"))
        with pytest.raises(LockLost):
            async with holder("x"):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass
        await evicting
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    run(work())


def test_an_outer_cancellation_is_not_swallowed(client: Client) -> None:
    async def work() -> None:
        holder, operator = client(), client()
        entered = asyncio.Event()

        async def hold() -> None:
            async with holder("x") as lease:
                entered.set()
                try:
                    await asyncio.sleep(60)
                finally:
                    # The loss and the cancellation come together.
                    await operator.evict("x", lease.fence, "host gone")
                    while lease.held:
                        await asyncio.sleep(0.01)
                    for _ in range(3):
                        await asyncio.sleep(0)

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

        async def plain() -> None:
            async with holder("y"):
                await asyncio.sleep(60)

        task = asyncio.create_task(plain())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with operator("y", wait=0):
            pass
        with pytest.raises(TimeoutError) as over:
            async with asyncio.timeout(0.1), holder("z"):
                await asyncio.sleep(60)
        assert not isinstance(over.value, leasehold.LeaseholdError)

    run(work())


def test_the_exception_of_a_block_is_kept_when_the_lock_is_lost(client: Client) -> None:
    async def work() -> None:
        holder, operator = client(), client()
        with pytest.raises(KeyError) as raised:
            async with holder("x") as lease:
                try:
                    await operator.evict("x", lease.fence, "host gone")
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    raise KeyError("mine") from None
        assert "no longer held" in raised.value.__notes__[0]

    run(work())


def test_a_loss_may_only_set_the_event(client: Client) -> None:
    async def work() -> None:
        holder, operator = client(), client()
        came_to_its_end = False
        with pytest.raises(LockLost):
            async with holder("x", on_lost="event") as lease:
                await operator.evict("x", lease.fence, "host gone")
                async with asyncio.timeout(10):
                    assert await lease.lost.wait_async()
                await asyncio.sleep(0.05)
                assert lease.lost.is_set()
                came_to_its_end = True
        assert came_to_its_end

    run(work())


def test_releasing_inside_the_block_does_not_cancel_it(lock: Leasehold) -> None:
    async def work() -> None:
        async with lock("x") as lease:
            await lease.release()
            await lease.release()
            await asyncio.sleep(0.05)
        assert not lease.held and not lease.lost.is_set()

    run(work())


def test_a_cancelled_wait_leaves_no_queue_entry(client: Client) -> None:
    async def work() -> None:
        one, two = client(), client()
        async with one("x"):
            waiting = asyncio.create_task(two("x", wait=None).acquire())
            await waiters(one, "x", 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await waiters(one, "x", 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await two("x", wait=None).acquire()
            await waiters(one, "x", 0)
        async with two("x", wait=0):
            pass

    run(work())


def test_a_grant_that_meets_a_cancellation_is_given_back(client: Client) -> None:
    async def work() -> None:
        one, two = client(), client()
        # Exceptions keep the frames that they went through, with what those had got.
        kept = list[BaseException]()
        for _ in range(20):
            lease = await one("x", wait=None).acquire()
            waiting = asyncio.create_task(two("x", wait=None).acquire())
            await waiters(one, "x", 1)
            await lease.release()
            # Blocks the loop, so that the grant has come before the cancellation.
            time.sleep(0.005)
            waiting.cancel()
            try:
                granted = await waiting
                await granted.release()
            except asyncio.CancelledError as cancelled:
                kept.append(cancelled)
        assert kept
        async with one("x", wait=5):
            pass

    run(work())


def test_many_waiters(client: Client) -> None:
    async def work() -> None:
        one = client()
        order = list[int]()

        async def take(number: int) -> None:
            async with one("x", wait=None):
                order.append(number)

        async with one("x"):
            tasks = list[asyncio.Task[None]]()
            for number in range(30):
                tasks.append(asyncio.create_task(take(number)))
                await waiters(one, "x", number + 1)
        await asyncio.gather(*tasks)
        assert order == list(range(30))

    run(work())


def test_a_guarded_coroutine_function(client: Client) -> None:
    async def work() -> None:
        one, two = client(), client()

        @one.guard("job", wait=0, on_busy="skip")
        async def job(number: int) -> int:
            assert await two("job").try_acquire() is None
            return number + 1

        assert await job(1) == 2
        async with two("job"):
            assert await job(1) is None

    run(work())


def test_terms_are_cancelled_and_follow_each_other(client: Client) -> None:
    async def work() -> None:
        one, operator = client("one"), client()
        fences = list[int]()
        async for term in one.election("leader", value="here"):
            async with term:
                fences.append(term.fence)
                if len(fences) == 2:
                    break
                await operator.evict("leader", term.fence, "too old")
                await asyncio.sleep(60)
        assert len(fences) == 2 and fences[0] < fences[1]
        assert await one.election("leader").leader() is None

    run(work())


def test_a_term_that_nobody_entered_ends_with_the_next(client: Client) -> None:
    async def work() -> None:
        fences = list[int]()
        async with asyncio.timeout(20):
            async for term in client().election("leader"):
                assert term.held
                fences.append(term.fence)
                if len(fences) == 3:
                    break
        assert fences == sorted(set(fences))

    run(work())


def test_watching(client: Client) -> None:
    async def work() -> None:
        one, two = client("one"), client()
        async with two.watch(prefix="x") as events:
            async with one("x1"):
                pass
            seen = [await anext(events), await anext(events)]
        assert [event.kind for event in seen] == ["acquired", "ended"]

    run(work())


def test_several_event_loops(client: Client) -> None:
    one = client()

    async def work() -> None:
        async with one("x"):
            await asyncio.sleep(0.01)

    for _ in range(5):
        run(work())


def test_a_blocked_event_loop_does_not_stop_renewals(client: Client) -> None:
    async def work() -> None:
        one, two = client(), client()
        async with one("x", ttl=1) as lease:
            time.sleep(2.5)
            lease.check()
            assert await two("x").try_acquire() is None

    run(work())
