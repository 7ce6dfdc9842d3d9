"""What both runtimes share: the clock, owner ids, settings, and the list of deployments."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ..core.events import Event, Hub
from ..core.quorum import majority
from ..core.script import Call
from ..errors import NodeError, NotReplicated
from ..wire.topology import Deployment

T = TypeVar("T")
INBOX_PREFIX = "holdfast:inbox:"
epochs = itertools.count(1)


def _monotonic() -> Callable[[], int]:
    """The largest of the clocks that only go forward.

    BOOTTIME counts through suspend but is slewed by NTP; MONOTONIC_RAW is not slewed but stops in
    suspend. Neither may make a lease look longer than it is, so the larger advance counts.
    """
    boot, raw = getattr(time, "CLOCK_BOOTTIME", None), getattr(time, "CLOCK_MONOTONIC_RAW", None)
    if boot is None or raw is None:
        return time.monotonic_ns
    read = time.clock_gettime_ns
    offset = read(boot) - read(raw)

    def now() -> int:
        return max(read(boot), read(raw) + offset)

    return now


class Told:
    """What a signal was told: the least of the times to look, or "now", which wins."""

    __slots__ = ("_look_ms", "_now")

    def __init__(self) -> None:
        self._now = False
        self._look_ms: int | None = None

    def tell(self, look_ms: int | None) -> None:
        known = self._look_ms  # read once: another thread may ask meanwhile
        if look_ms is None:
            self._now = True
        elif known is None or look_ms < known:
            self._look_ms = look_ms

    def told(self) -> int | None:
        look_ms, self._look_ms = self._look_ms, None
        now, self._now = self._now, False
        return None if now else look_ms


def addressed(message: str) -> tuple[str, int | None]:
    """The mailbox of an inbox message, and in how many ms to look: `owner`, or `owner\\n1200`."""
    mailbox, _, look_ms = message.partition("\n")
    return mailbox, int(look_ms) if look_ms.isdigit() else None


class Settings(msgspec.Struct, frozen=True):
    """What `connect()` was told, as the runtimes need it."""

    timeout: float = 2.0


class Common:
    """The part of a runtime that does not depend on its colour."""

    def __init__(self, deployments: list[Deployment], settings: Settings, hub: Hub) -> None:
        self.deployments = deployments
        self.settings = settings
        self.hub = hub
        self.nodes = tuple(deployment.name for deployment in deployments)
        self.now = _monotonic()
        self.wall = time.time_ns
        self.wants = hub.wants
        self._random = random.Random()
        self._renew_identity()
        _runtimes.add(self)

    def _renew_identity(self) -> None:
        self.epoch = next(epochs)
        self.inbox = INBOX_PREFIX + os.urandom(12).hex()
        # ':' separates the parts of an owner id.
        self._where = f"{socket.gethostname().replace(':', '-')[:64]}:{os.getpid()}"
        self._random.seed(os.urandom(16))

    def token(self, label: str) -> str:
        # Fresh bits from the system for every hold: a seed taken before a fork makes twins.
        return f"{os.urandom(16).hex()}:{self._where}:{label}"

    def admits(self, deployment: Deployment) -> bool:
        """Whether to ask this node. One that failed lately is passed over while others decide."""
        if not deployment.failures or len(self.deployments) == 1:
            return True
        now = time.monotonic()
        if deployment.is_shut(now):
            able = sum(not other.is_shut(now) for other in self.deployments)
            if able >= majority(len(self.deployments)):
                return False
        deployment.admit_probe(now)
        return True

    def jitter(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def emit(self, event: Event) -> None:
        self.hub.emit(event)

    def after_fork(self) -> None:
        """In a forked child: own nothing, share nothing."""
        self._renew_identity()


def timed_out(error: BaseException | None) -> bool:
    """Whether an exchange ended because its time was over: what was sent may be read yet."""
    return error is not None and isinstance(error.__cause__, TimeoutError | BlockingIOError)


def passed_over(deployment: Deployment) -> NodeError:
    """The answer of a node that was not asked."""
    name = deployment.name
    return NodeError(
        f"{name} is passed over: it did not answer a moment ago", node=name, sent=False
    )


def wait_ms(call: Call[Any]) -> str:
    """How long WAIT may wait: half of the time, so that its answer comes back in the other half."""
    return str(max(1, int(call.timeout * 500)))


def connected_replicas(role: Any) -> int:
    """What "all" means: every replica connected now, and at least one, or none would do."""
    return max(1, len(role[2]) if role[0] == b"master" else 1)


def check_replicated(call: Call[Any], wanted: int, confirmed: Any) -> None:
    """Raise NotReplicated unless `confirmed`, the answer to WAIT, is enough."""
    if isinstance(confirmed, Exception) or int(confirmed) < wanted:
        got = confirmed if isinstance(confirmed, int) else 0
        wanted = max(wanted, 1)  # "all", and ROLE was refused: at least one
        raise NotReplicated(
            f"{call.keys[0]!r}: {got} of {wanted} replicas confirmed the write"
            + (f" ({confirmed})" if isinstance(confirmed, Exception) else ""),
            wanted=wanted,
            got=got,
            name=call.keys[0],
        )


_runtimes: weakref.WeakSet[Common] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for runtime in list(_runtimes):
        runtime.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
