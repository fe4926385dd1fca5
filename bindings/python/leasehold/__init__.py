"""One lock, many machines: a distributed lock on Postgres, Redis or plain files.

    lock = connect("postgres://db/app")

    async with lock("job:123") as lease:
        await write(rows, fence=lease.fence)

    with lock("job:123"):
        do_work()
"""

from ._connect import Leasehold, connect
from ._election import Election
from ._errors import (
    BackendUnavailable,
    Closed,
    ConfigError,
    Holder,
    LeaseholdError,
    LockBusy,
    LockLost,
    NotAcquired,
    NotSupported,
)
from ._lease import Lease, Leases, LostEvent, Term
from ._lock import Lock
from ._native import version as __version__
from ._records import EndedLease, Event, Leader, LeaseInfo
from ._watch import Watch

__all__ = [
    "BackendUnavailable",
    "Closed",
    "ConfigError",
    "Election",
    "EndedLease",
    "Event",
    "Holder",
    "Leader",
    "Lease",
    "LeaseInfo",
    "Leasehold",
    "LeaseholdError",
    "Leases",
    "Lock",
    "LockBusy",
    "LockLost",
    "LostEvent",
    "NotAcquired",
    "NotSupported",
    "Term",
    "Watch",
    "__version__",
    "connect",
]
