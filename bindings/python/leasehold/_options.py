"""The options of locks and elections."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, TypedDict


class Default(enum.Enum):
    """Stands for a setting that was not given."""

    DEFAULT = "default"


DEFAULT: Final = Default.DEFAULT

Wait: TypeAlias = "float | None | Default"
OnLost: TypeAlias = Literal["cancel", "event"]


class AcquireOptions(TypedDict, total=False):
    """Options of all locks and elections. None stands for the default, but for `wait`."""

    wait: Wait
    """How many seconds to wait at most: 0 not at all, None without limit."""
    ttl: float | None
    """How many seconds the lease lives without a renewal."""
    max_hold: float | None
    """After how many seconds the lease is lost however often it is renewed."""
    holder: str | None
    """The name that others see."""
    note: str | None
    """One line for others to read."""
    metadata: Mapping[str, Any] | None
    """What others can read, as a JSON object."""
    max_waiters: int | None
    """How many may be ahead in the queue."""


class AllOptions(AcquireOptions, total=False):
    """Options of several locks together."""

    on_lost: OnLost
    """Whether the loss of the lock cancels the task in an `async with` block, or only sets `lease.lost`."""


class LockOptions(AllOptions, total=False):
    """Options of one lock."""

    auto_renew: bool
    """False: the lease ends with its ttl unless you renew it, and outlives this process."""


_NAMES: Final = {kind: frozenset(kind.__annotations__) for kind in (AcquireOptions, AllOptions, LockOptions)}


def to_native(options: AcquireOptions, kind: type[AcquireOptions]) -> dict[str, object] | None:
    """The options as the native part takes them; raises `TypeError` for one that this kind does not have."""
    if not options:
        return None
    taken: dict[str, object] = {}
    for name, value in options.items():
        if name not in _NAMES[kind]:
            raise TypeError(f"there is no option {name!r}")
        if name == "wait":
            if value is not DEFAULT:
                taken[name] = value
        elif name not in ("metadata", "on_lost") and value is not None:
            taken[name] = value
    metadata = options.get("metadata")
    if metadata is not None:
        taken["metadata"] = json.dumps(dict(metadata))
    return taken or None
