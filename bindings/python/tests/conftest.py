"""Backends for the tests: every test that takes `url` runs on each."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import servers
from leasehold import Leasehold, connect

BACKENDS = ["memory", "file", "redis", "postgres"]


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with servers.redis() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with servers.postgres() as url:
        with connect(url + "?init=1") as lock:
            servers.wait_until(lambda: servers.opens(lock), "postgres", limit=60)
        yield url


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a backend."""
    if backend == "memory":
        return f"memory:{uuid.uuid4().hex}"
    if backend == "file":
        return f"file://{tmp_path}"
    found: str = request.getfixturevalue(f"{backend}_url")
    return found


@pytest.fixture(params=["file", "redis", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a backend that several processes reach."""
    if request.param == "file":
        return f"file://{tmp_path}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex[:12]


@pytest.fixture
def client(url: str, namespace: str) -> Iterator[Callable[..., Leasehold]]:
    """Opens clients of one backend, which are closed when the test ends."""
    opened = list[Leasehold]()

    def open_client(holder: str | None = None, **settings: float) -> Leasehold:
        opened.append(connect(url, namespace=namespace, holder=holder, **settings))
        return opened[-1]

    yield open_client
    for lock in opened:
        lock.close_sync()


@pytest.fixture
def lock(client: Callable[..., Leasehold]) -> Leasehold:
    return client()
