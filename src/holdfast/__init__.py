"""holdfast: distributed locks for Python, on Redis and Valkey, blocking and asyncio alike.

    import holdfast

    hf = holdfast.connect("redis://localhost:6379/0")
    with hf.lock("order:123", lease=30, wait=5) as hold:
        charge(order, fence=hold.fence)

The same names for asyncio are in `holdfast.aio`. Everything public is listed in `__all__`.
"""

from .client import Client, connect
from .errors import (
    HoldfastError,
    LockLost,
    LockLostWarning,
    LockTimeout,
    NodeError,
    NotReplicated,
    QuorumError,
    ServerNotFound,
    Timeout,
    Unavailable,
    UsageError,
)
from .locks.hold import Hold, Lost
from .locks.info import LockInfo
from .locks.lock import Lock

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Hold",
    "HoldfastError",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockLostWarning",
    "LockTimeout",
    "Lost",
    "NodeError",
    "NotReplicated",
    "QuorumError",
    "ServerNotFound",
    "Timeout",
    "Unavailable",
    "UsageError",
    "connect",
]
