"""Fixtures for pytest, which finds them once the package is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .._connect import Leasehold
from . import memory


@pytest.fixture
def leasehold_memory() -> Iterator[Leasehold]:
    """Locks in memory that only this test has."""
    with memory() as lock:
        yield lock
