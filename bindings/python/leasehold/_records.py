"""What listings, history and event streams show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

Record = TypeVar("Record")
_TIMES = ("asked_at", "acquired_at", "ended_at", "since", "at")


@dataclass(frozen=True)
class LeaseInfo:
    """A lease that is held, or a position in the queue. Lengths of time are seconds."""

    name: str
    holder: str
    mode: str
    """`exclusive`, `shared`, `permit` or `leader`."""
    state: str
    """`holding` or `waiting`."""
    permits: int | None
    fence: int | None
    asked_at: datetime
    acquired_at: datetime | None
    age: float
    """How long it has been held, or has waited."""
    ahead: int | None
    """How many waiters are ahead of one that waits."""
    ttl: float
    expires_in: float | None
    """Time left without a renewal; None if the lease lasts as long as its process or connection."""
    note: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class EndedLease:
    """A lease, or a wait for one, that ended."""

    name: str
    holder: str
    mode: str
    permits: int | None
    fence: int | None
    asked_at: datetime
    acquired_at: datetime | None
    ended_at: datetime
    ending: str
    """`released`, `failed`, `expired`, `disconnected`, `evicted`, `max_hold`, `gave_up` or `cancelled`."""
    problem: str | None
    """What went wrong: the type of the exception that left the block, for instance."""
    problem_details: str | None
    """The text of that exception, or the reason for an eviction."""
    note: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Event:
    """Something that happened to a lock."""

    kind: str
    """`waiting`, `acquired`, `ended`, or `missed`: there were more events than could be kept, so list again."""
    at: datetime | None = None
    name: str | None = None
    holder: str | None = None
    mode: str | None = None
    fence: int | None = None
    ending: str | None = None


@dataclass(frozen=True)
class Leader:
    """The leader of an election."""

    holder: str
    value: str | None
    """What it publishes, such as its address."""
    fence: int
    since: datetime
    led_for: float


def _record(kind: type[Record], values: dict[str, Any]) -> Record:
    for name in _TIMES:
        if values.get(name) is not None:
            values[name] = datetime.fromtimestamp(values[name] / 1e6, timezone.utc)
    return kind(**values)


def one(kind: type[Record], text: str) -> Record:
    """The record in this JSON text."""
    return _record(kind, json.loads(text))


def many(kind: type[Record], text: str) -> list[Record]:
    """The records in this JSON text."""
    return [_record(kind, values) for values in json.loads(text)]
