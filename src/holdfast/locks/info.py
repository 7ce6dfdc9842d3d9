"""What a lock looks like to people: one script that changes nothing, and what its answer becomes.

One round trip; all keys of the lock are read and none is written.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from ..core.script import Script, text


class LockInfo(msgspec.Struct, frozen=True):
    """A lock as the server sees it, for people to look at: it may be different a moment later."""

    name: str
    holder: str | None
    """Owner id of the holder (or of the waiter for which the lock is reserved); None if free."""
    label: str
    """The holder's label, if holdfast wrote the owner id and a label was given."""
    expires_in: float | None
    """Seconds until the key expires by itself; None if free, infinite if somebody set no TTL."""
    fence: int
    """The largest fence granted so far; 0 if none is known."""
    waiting: int
    """How many owners are queued."""
    waiters: tuple[str, ...]
    """The first hundred of them, in order."""


class Snapshot(msgspec.Struct, frozen=True):
    """What one node says of a lock."""

    holder: str | None
    pttl: int
    fence: int
    waiting: int
    waiters: tuple[str, ...]

    def __str__(self) -> str:
        return f"held by {self.holder}" if self.holder else "free"

    def info(self, name: str) -> LockInfo:
        """The same in the words of the public face."""
        parts = (self.holder or "").split(":", 3)
        held_for = math.inf if self.pttl < 0 else self.pttl / 1000
        return LockInfo(
            name=name,
            holder=self.holder,
            label=parts[3] if len(parts) == 4 else "",
            expires_in=None if self.holder is None else held_for,
            fence=self.fence,
            waiting=self.waiting,
            waiters=self.waiters,
        )


def _snapshot(reply: Any) -> Snapshot:
    holder, pttl, fence, waiting, waiters = reply
    return Snapshot(
        None if holder is None else text(holder),
        int(pttl),
        int(number) if (number := text(fence).partition(" ")[0]).isdecimal() else 0,
        int(waiting),
        tuple(map(text, waiters)),
    )


# ARGV: none -> {holder, PTTL, fence, how many wait, the first hundred}
INFO: Final = Script(
    "lock.info",
    """
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2]) or '0',
  redis.call('ZCARD', KEYS[3]), redis.call('ZRANGE', KEYS[3], 0, 99)}
""",
    _snapshot,
)
