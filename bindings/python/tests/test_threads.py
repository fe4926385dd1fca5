"""Locks in plain threads: `with`, and the calls that block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import leasehold
import pytest
from leasehold import Leasehold, LockBusy, LockLost, connect
from servers import wait_until

Client = Callable[..., Leasehold]


def test_a_block_holds_the_lock(client: Client) -> None:
    first, second = client("one"), client("two")
    with first("x") as lease:
        assert lease.held and lease.name == "x" and lease.holder == "one"
        assert lease.fence > 0 and lease.ttl == 30 and lease.remaining > 20
        lease.check()
        assert not lease.lost.is_set()
        assert second("x").try_acquire_sync() is None
        with pytest.raises(LockBusy) as busy:
            second("x", wait=0.2).acquire_sync()
        assert [held.name for held in busy.value.holders] == ["one"]
        assert busy.value.waited >= 0.2 and "one" in str(busy.value)
        assert isinstance(busy.value, TimeoutError)
    assert not lease.held
    with second("x") as again:
        assert again.fence > lease.fence


def test_one_object_serves_many_threads(lock: Leasehold) -> None:
    counter, inside = 0, 0
    shared = lock("counter", wait=None)

    def count() -> None:
        nonlocal counter, inside
        for _ in range(25):
            with shared as lease:
                inside += 1
                assert inside == 1 and lease.held
                counter += 1
                inside -= 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter == 100


def test_each_thread_leaves_with_its_own_lease(lock: Leasehold) -> None:
    shared = lock.read("catalog")
    first_entered, second_entered, first_left = threading.Event(), threading.Event(), threading.Event()
    held = list[bool]()

    def first() -> None:
        with shared as lease:
            first_entered.set()
            second_entered.wait(10)
        held.append(lease.held)
        first_left.set()

    thread = threading.Thread(target=first)
    thread.start()
    first_entered.wait(10)
    with shared as lease:
        second_entered.set()
        first_left.wait(10)
        held.append(lease.held)
    thread.join()
    assert held == [False, True]


def test_readers_share_and_permits_count(client: Client) -> None:
    one, two = client(), client()
    with one.read("catalog"), two.read("catalog"):
        assert one.write("catalog").try_acquire_sync() is None
    with one.semaphore("gpu", limit=2), two.semaphore("gpu", limit=2):
        assert one.semaphore("gpu", limit=2).try_acquire_sync() is None
    with one.all("b", "a") as both:
        assert list(both) == ["a", "b"] and both.fences["a"] > 0 and len(both) == 2
        assert two("a").try_acquire_sync() is None


def test_a_failure_is_recorded(lock: Leasehold) -> None:
    with pytest.raises(ZeroDivisionError), lock("job", note="nightly"):
        _ = 1 / 0
    with lock("job"):
        pass
    wait_until(lambda: len(lock.history_sync("job")) == 2, "history")
    done, failed = lock.history_sync("job")
    assert (done.ending, failed.ending) == ("released", "failed")
    assert (failed.problem, failed.problem_details) == ("ZeroDivisionError", "division by zero")
    assert failed.note == "nightly" and failed.ended_at >= failed.asked_at
    assert [one.ending for one in lock.history_sync("job", failures=True)] == ["failed"]
    assert lock.history_sync("job", since=failed.ended_at.replace(year=2100)) == []


def test_a_lost_lock_is_reported_at_the_end_of_the_block(client: Client) -> None:
    holder, operator = client(), client()
    fence = 0
    with pytest.raises(LockLost) as lost:
        with holder("x") as lease:
            fence = lease.fence
            assert operator.evict_sync("x", fence, "host gone")
            assert lease.lost.wait(10)
            assert lease.lost.is_set() and not lease.held
            with pytest.raises(LockLost):
                lease.check()
            with pytest.raises(LockLost):
                lease.renew_sync(10)
    assert lost.value.reason == "evicted" and lost.value.held_for >= 0
    assert not operator.evict_sync("x", fence, "again")


def test_the_exception_of_a_block_is_kept_when_the_lock_is_lost(client: Client) -> None:
    holder, operator = client(), client()
    with pytest.raises(KeyError) as raised:
        with holder("x") as lease:
            operator.evict_sync("x", lease.fence, "host gone")
            lease.lost.wait(10)
            raise KeyError("mine")
    assert "no longer held" in raised.value.__notes__[0]


def test_waiting_for_a_loss_ends_in_time_and_with_the_release(lock: Leasehold) -> None:
    with lock("x") as lease:
        began = time.monotonic()
        assert not lease.lost.wait(0.2)
        assert 0.2 <= time.monotonic() - began < 5
        seen = list[bool]()
        watcher = threading.Thread(target=lambda: seen.append(lease.lost.wait()))
        watcher.start()
    watcher.join(10)
    assert seen == [False]


def test_releasing_inside_the_block_is_no_loss(lock: Leasehold) -> None:
    with lock("x") as lease:
        lease.release_sync()
        lease.release_sync()
        assert not lease.lost.is_set() and not lease.held
    with lock("x", wait=0):
        pass


def test_a_lease_that_is_dropped_is_given_back(client: Client) -> None:
    lease = client()("x").acquire_sync()
    del lease
    with client()("x"):
        pass


def test_max_hold_ends_a_lease_that_is_renewed(client: Client) -> None:
    with pytest.raises(LockLost) as lost, client()("x", max_hold=0.3) as lease:
        assert lease.lost.wait(10)
    assert lost.value.reason == "max_hold"


def test_the_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, url: str, namespace: str) -> None:
    monkeypatch.setenv("LEASEHOLD_URL", url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    with connect() as one, connect(url, namespace=namespace) as two, one("x"):
        assert two("x").try_acquire_sync() is None


def test_an_empty_url_does_not_mean_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_URL", "")
    with pytest.raises(leasehold.ConfigError, match="scheme"):
        connect().open_sync()


def test_nothing_is_opened_until_the_first_use() -> None:
    lock = connect("redis://127.0.0.1:1")
    later = lock("x")
    with pytest.raises(leasehold.BackendUnavailable) as problem:
        later.acquire_sync()
    assert isinstance(problem.value, ConnectionError)
    with pytest.raises(leasehold.ConfigError):
        connect("nonsense:").open_sync()


def test_a_guarded_function_runs_under_the_lock(client: Client) -> None:
    one, two = client(), client()

    @one.guard("job", wait=0, on_busy="skip")
    def job(number: int) -> int:
        """The job."""
        assert two("job").try_acquire_sync() is None
        return number + 1

    @two.guard("job", wait=0)
    def strict() -> str:
        return "ran"

    assert job(1) == 2 and job.__doc__ == "The job."
    with two("job"):
        assert job(1) is None
        with pytest.raises(LockBusy):
            strict()
    assert strict() == "ran"

    def numbers() -> object:
        yield 1

    with pytest.raises(TypeError):
        one.guard("job")(numbers)


def test_an_option_that_there_is_not_is_refused(client: Client) -> None:
    locks = client("one")
    typo: dict[str, Any] = {"tll": 5}
    with pytest.raises(TypeError, match="tll"):
        locks("x", **typo)
    # Those of one lock only.
    detached: dict[str, Any] = {"auto_renew": False}
    with pytest.raises(TypeError, match="auto_renew"):
        locks.all("x", "y", **detached)
    with pytest.raises(TypeError, match="auto_renew"):
        locks.election("x", **detached)


def test_terms_follow_each_other(client: Client) -> None:
    one, two = client("one"), client("two")
    election = one.election("leader", value="10.0.0.5:80")
    fences = list[int]()
    for term in election:
        with term:
            leader = two.election("leader").leader_sync()
            assert leader is not None and (leader.holder, leader.value) == ("one", "10.0.0.5:80")
            assert leader.fence == term.fence and two.election("leader").try_acquire_sync() is None
            fences.append(term.fence)
        if len(fences) == 2:
            break
    assert fences[0] < fences[1] and election.leader_sync() is None


def test_a_term_that_is_lost_ends_quietly(client: Client) -> None:
    one, operator = client(), client()
    terms = 0
    for term in one.election("leader"):
        terms += 1
        if terms == 2:
            break
        with term:
            operator.evict_sync("leader", term.fence, "too old")
            assert term.lost.wait(10)
    assert terms == 2


def test_watching(client: Client) -> None:
    one, two = client("one"), client()
    with two.watch("x") as events:
        with one("x"):
            pass
        kinds = [(event.kind, event.holder, event.ending) for event in (next(events), next(events))]
    assert kinds == [("acquired", "one", None), ("ended", "one", "released")]


def test_listing(client: Client) -> None:
    one = client("one")
    with one("a:x", note="here", metadata={"n": 1}), one("b:y"):
        listed = one.list_sync(prefix="a:")
        assert [lease.name for lease in listed] == ["a:x"]
        assert listed[0].note == "here" and listed[0].metadata == {"n": 1} and listed[0].asked_at.year > 2000
        assert {lease.name for lease in one.list_sync()} >= {"a:x", "b:y"}


def test_a_closed_connection_has_given_everything_back(client: Client) -> None:
    one = client()
    lease = one("x").acquire_sync()
    one.close_sync()
    assert not lease.held
    with pytest.raises(leasehold.Closed):
        one("y").acquire_sync()
    with client()("x", wait=0):
        pass
