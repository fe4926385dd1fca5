"""Runs the conformance cases that the packages of all languages share, in threads and in tasks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leasehold
import pytest
from leasehold import Leasehold, connect

CASES = json.loads((Path(__file__).parents[2] / "cases" / "cases.json").read_text())["cases"]
OPTIONS = ("wait", "ttl", "max_hold", "holder", "note", "metadata", "max_waiters")
FAILURES: dict[str, type[leasehold.LeaseholdError]] = {
    "busy": leasehold.LockBusy,
    "lost": leasehold.LockLost,
    "config": leasehold.ConfigError,
    "unsupported": leasehold.NotSupported,
    "unavailable": leasehold.BackendUnavailable,
    "closed": leasehold.Closed,
}


class Case:
    """One run of a case; each step is a method."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        self.clients: dict[str, Leasehold] = {}
        self.leases: dict[str, Any] = {}
        self.started: dict[str, tuple[str, asyncio.Task[Any]]] = {}
        self.watches: dict[str, leasehold.Watch] = {}

    async def run(self, steps: list[dict[str, Any]]) -> None:
        try:
            for at, step in enumerate(steps, 1):
                try:
                    await getattr(self, f"do_{step['do']}")(step)
                except AssertionError as problem:
                    raise AssertionError(f"step {at}, {json.dumps(step)}: {problem}") from problem
        finally:
            for _, task in self.started.values():
                task.cancel()
            for client in self.clients.values():
                await client.close()

    def client(self, step: dict[str, Any]) -> Leasehold:
        name = step.get("client", "a")
        if name not in self.clients:
            self.clients[name] = connect(self.url, namespace=self.namespace, holder=name)
        return self.clients[name]

    def lock(self, step: dict[str, Any]) -> Any:
        client, kind = self.client(step), step.get("kind", "mutex")
        options = {name: step[name] for name in OPTIONS if name in step}
        if kind == "semaphore":
            return client.semaphore(step["name"], step["limit"], permits=step.get("permits", 1), **options)
        if kind == "all":
            return client.all(*step["names"], **options)
        if kind == "election":
            return client.election(step["name"], value=step.get("value"), **options)
        makers: dict[str, Callable[..., Any]] = {"mutex": client, "read": client.read, "write": client.write}
        return makers[kind](step["name"], **options)

    async def outcome(self, step: dict[str, Any], get: Callable[[], Any]) -> None:
        """Compares what comes of `get` with the word that the step expects."""
        expected = step["expect"]
        try:
            found = await get()
        except leasehold.LeaseholdError as error:
            assert expected in FAILURES, f"{type(error).__name__}: {error}"
            assert type(error) is FAILURES[expected], f"{type(error).__name__}: {error}"
            if "holders" in step:
                assert isinstance(error, leasehold.NotAcquired)
                assert [held.name for held in error.holders] == step["holders"], error
            return
        word = "none" if found is None else "held"
        assert word == expected
        if found is not None:
            self.leases[step["as"]] = found

    async def do_acquire(self, step: dict[str, Any]) -> None:
        await self.outcome(step, lambda: self.lock(step).acquire())

    async def do_try(self, step: dict[str, Any]) -> None:
        await self.outcome(step, lambda: self.lock(step).try_acquire())

    async def waiting(self, name: str) -> int:
        listed = await self.client({}).list(name)
        return sum(1 for lease in listed if lease.state == "waiting")

    async def until_waiting(self, name: str, count: int) -> None:
        until = time.monotonic() + 10
        while await self.waiting(name) != count:
            assert time.monotonic() < until, f"not {count} waiters of {name}"
            await asyncio.sleep(0.01)

    async def do_start(self, step: dict[str, Any]) -> None:
        before = await self.waiting(step["name"])
        task = asyncio.ensure_future(self.lock(step).acquire())
        self.started[step["as"]] = (step["name"], task)
        await self.until_waiting(step["name"], before + 1)

    async def do_finish(self, step: dict[str, Any]) -> None:
        await self.outcome(step, lambda: asyncio.wait_for(self.started[step["as"]][1], 10))

    async def do_pending(self, step: dict[str, Any]) -> None:
        assert not self.started[step["as"]][1].done()

    async def do_cancel(self, step: dict[str, Any]) -> None:
        name, task = self.started[step["as"]]
        before = await self.waiting(name)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await self.until_waiting(name, before - 1)

    async def do_release(self, step: dict[str, Any]) -> None:
        await self.leases[step["lease"]].release()

    async def do_renew(self, step: dict[str, Any]) -> None:
        try:
            await self.leases[step["lease"]].renew(step["ttl"])
        except leasehold.LockLost:
            assert step["expect"] == "lost"
        else:
            assert step["expect"] == "renewed"

    async def do_check(self, step: dict[str, Any]) -> None:
        lease = self.leases[step["lease"]]
        assert lease.held == (step["expect"] == "held")
        if step["expect"] == "held":
            lease.check()
            assert lease.remaining > 0
        else:
            with pytest.raises(leasehold.LockLost):
                lease.check()

    async def do_lost(self, step: dict[str, Any]) -> None:
        lease = self.leases[step["lease"]]
        assert await asyncio.wait_for(lease.lost.wait_async(), 10)
        with pytest.raises(leasehold.LockLost) as lost:
            lease.check()
        assert lost.value.reason == step["expect"]

    async def do_order(self, step: dict[str, Any]) -> None:
        fences = [self.leases[name].fence for name in step["leases"]]
        assert fences == sorted(set(fences))

    async def do_run(self, step: dict[str, Any]) -> None:
        error = RuntimeError(step.get("raise"))
        try:
            async with self.lock(step):
                if "raise" in step:
                    raise error
        except RuntimeError as raised:
            assert raised is error and step["expect"] == "raised"
        else:
            assert step["expect"] == "returned"

    async def do_decorate(self, step: dict[str, Any]) -> None:
        error = RuntimeError(step.get("raise"))
        options = {name: step[name] for name in (*OPTIONS, "on_busy") if name in step}

        async def work() -> str:
            if "raise" in step:
                raise error
            return "done"

        make_guard: Callable[..., Callable[..., Any]] = self.client(step).guard
        try:
            result: object = await make_guard(step["name"], **options)(work)()
        except RuntimeError as raised:
            assert raised is error and step["expect"] == "raised"
        except leasehold.LeaseholdError as raised:
            assert type(raised) is FAILURES[step["expect"]]
        else:
            assert step["expect"] == ("skipped" if result is None else "returned")

    async def do_evict(self, step: dict[str, Any]) -> None:
        lease = self.leases[step["lease"]]
        evicted = await self.client(step).evict(lease.name, lease.fence, step["reason"])
        assert evicted == (step["expect"] == "evicted")

    def compare(self, found: object, expected: dict[str, Any]) -> None:
        for name, value in expected.items():
            if name == "lease":
                name, value = "fence", self.leases[value].fence
            assert getattr(found, name) == value, f"{name} of {found}"

    async def do_list(self, step: dict[str, Any]) -> None:
        until = time.monotonic() + 10
        # A waiter whose wait ran out leaves the queue in the background.
        while len(found := await self.client(step).list(step["name"])) != len(step["expect"]):
            assert time.monotonic() < until, found
            await asyncio.sleep(0.01)
        for lease, expected in zip(found, step["expect"]):
            self.compare(lease, expected)

    async def do_history(self, step: dict[str, Any]) -> None:
        until = time.monotonic() + 10
        # Some backends write the history after they have answered.
        while len(found := await self.client(step).history(step["name"])) < len(step["expect"]):
            assert time.monotonic() < until, found
            await asyncio.sleep(0.01)
        for ended, expected in zip(found, step["expect"]):
            self.compare(ended, expected)

    async def do_events(self, step: dict[str, Any]) -> None:
        self.watches[step["as"]] = await self.client(step).watch(step["name"]).__aenter__()

    async def do_event(self, step: dict[str, Any]) -> None:
        event = await asyncio.wait_for(self.watches[step["as"]].__anext__(), 10)
        self.compare(event, step["expect"])

    async def do_close(self, step: dict[str, Any]) -> None:
        await self.client(step).close()

    async def do_sleep(self, step: dict[str, Any]) -> None:
        await asyncio.sleep(step["seconds"])


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: dict[str, Any], backend: str, url: str, namespace: str) -> None:
    if backend in case.get("backends", [backend]):
        asyncio.run(Case(url, namespace).run(case["steps"]))
