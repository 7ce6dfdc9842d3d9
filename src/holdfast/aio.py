"""holdfast for asyncio: the same names, awaited.

import holdfast.aio

async with holdfast.aio.connect("redis://localhost") as hf:
    async with hf.lock("order:123") as hold:      # the body is cancelled if the lock is lost
        await charge(order, fence=hold.fence)
"""

from .client import AsyncClient as Client
from .client import aconnect as connect
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
from .locks.hold import AsyncHold as Hold
from .locks.hold import AsyncLost as Lost
from .locks.info import LockInfo
from .locks.lock import AsyncLock as Lock

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
