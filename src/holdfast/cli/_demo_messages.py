"""What `holdfast demo` and its worker processes say to each other, one line at a time.

Orders go to a worker's stdin as bare words, reports come from its stdout as JSON. Instants are
nanoseconds of `time.monotonic_ns()`, a clock that the processes of one host share.
"""

from __future__ import annotations

from typing import Final

import msgspec

GO: Final = b"go\n"
"""Begin taking turns."""
LINGER: Final = b"linger\n"
"""Keep the lock in the next turn, until told to write."""
WRITE: Final = b"write\n"
"""End the lingering: do the write that was left."""
STOP: Final = b"stop\n"
"""End after this turn. The end of stdin means: end now."""


class Terms(msgspec.Struct, frozen=True):
    """What a worker is started with: `target`, `max_lease` and `guard` are for `connect()`."""

    target: str | list[str]
    name: str
    lease: float
    fenced: bool
    max_lease: float | None = None
    guard: bool = True
    rest: float = 0.0
    worker: int = 0
    account: str = ""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Connected, and waiting for GO."""


class Holding(msgspec.Struct, frozen=True, tag=True):
    """The lock was granted, the fence shown to the account, and `value` read from it."""

    fence: int
    asked: int
    granted: int
    deadline: int
    value: int
    lingers: bool
    owner: str


class Prolonged(msgspec.Struct, frozen=True, tag=True):
    """The lease was renewed."""

    deadline: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """A turn is over: what became of its write, and whether the lock was lost meanwhile.

    `found` and `found_fence` are what stood in the account when it refused.
    """

    ended: int
    deadline: int
    wrote: int
    accepted: bool
    found: int = 0
    found_fence: int = 0
    lost: str = ""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot go on."""

    error: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The worker's output has ended. Not sent: the demo notices it."""


Report = Ready | Holding | Prolonged | Done | Failed | Ended
