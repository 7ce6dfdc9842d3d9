"""Clients: `connect()`, and what it returns. One per process and deployment is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .core.events import Event, Hub, Observer
from .core.keeper import Keeper
from .core.lease import Seconds, Validity, milliseconds, seconds
from .core.pinned import Pinned
from .core.runtime import Runtime, run
from .drivers.asyncio import AsyncioRuntime
from .drivers.blocking import BlockingRuntime
from .drivers.common import Settings
from .errors import HoldfastError, UsageError
from .locks.lock import AsyncLock, Lock
from .locks.redlock import AsyncRedlock, bootstrap
from .locks.terms import Kit, OnLost, Wait
from .observe import logging as log
from .wire.targets import deployment, independent
from .wire.topology import Deployment

if TYPE_CHECKING:
    from .server import Server

Target = object
# Over several primaries a node's timeout and the quarantine after a restart are what users feel.
QUORUM_TIMEOUT = 0.5
QUORUM_MAX_LEASE = 60.0


class _Base(Pinned):
    """What both clients share: where they connect to, their observers, their lock settings."""

    _asynchronous: bool

    def __init__(
        self,
        target: Target,
        *,
        timeout: Seconds | None = None,
        drift: float = 0.01,
        clock_step: Seconds = 0.0,
        replica_skew: Seconds = 0.0,
        max_lease: Seconds | None = None,
        guard: bool = True,
    ) -> None:
        if not 0 <= seconds(drift, "drift") < 0.5:
            raise UsageError(f"drift={drift!r} must be a fraction between 0 and 0.5")
        if not isinstance(guard, bool):
            raise UsageError(f"guard={guard!r} must be True or False")
        several = isinstance(target, Sequence) and not isinstance(target, str | bytes)
        if timeout is None:
            timeout = QUORUM_TIMEOUT if several else 2.0
        if max_lease is None:
            max_lease = QUORUM_MAX_LEASE if several else 3600.0
        settings = Settings(timeout=seconds(timeout, "timeout", least=0.001, most=3600))
        validity = Validity(
            drift=float(drift),
            step_ms=milliseconds(seconds(clock_step, "clock_step")),
            skew_ms=milliseconds(seconds(replica_skew, "replica_skew")),
        )
        most = seconds(max_lease, "max_lease", least=0.01, most=30 * 24 * 3600)
        self._embedded: Server | None = None
        self._hub = Hub()
        log.attach(self._hub)
        if isinstance(target, Sequence) and not isinstance(target, str | bytes):
            found = [deployment(each, asynchronous=self._asynchronous) for each in target]
            deployments = independent(found, guarded=guard)
        else:
            deployments = [self._deployment(target)]
        rt = self._runtime(deployments, settings)
        self._kit = Kit(
            rt,
            Keeper(rt),
            validity,
            settings.timeout,
            most,
            AsyncRedlock if several else AsyncLock,
            quarantine_ms=milliseconds(most) + validity.step_ms if several and guard else 0,
        )

    def _deployment(self, target: Target) -> Deployment:
        if target == "embedded:":
            from . import server

            self._embedded = server.acquire_shared()
            target = self._embedded.unix_url
        return deployment(target, asynchronous=self._asynchronous)

    def _runtime(self, deployments: list[Deployment], settings: Settings) -> Runtime:
        raise NotImplementedError

    def _closed(self) -> None:
        if self._embedded is not None:
            from . import server

            server.release_shared(self._embedded)
            self._embedded = None

    def subscribe(
        self, observer: Observer, kinds: Iterable[type[Event]] | None = None
    ) -> Callable[[], None]:
        """Have `observer(event)` called for the client's events (all kinds, or these).

        Returns a function that ends the subscription. The kinds are in `holdfast.events`. The
        observer runs in the flow that caused the event, so it must be quick; what it raises is
        swallowed.
        """
        return self._hub.subscribe(observer, kinds)


class Client(_Base):
    """A blocking client. Safe to share between threads; a forked child may go on using it."""

    _asynchronous = False

    def _runtime(self, deployments: list[Deployment], settings: Settings) -> Runtime:
        self._rt = BlockingRuntime(deployments, settings, self._hub)
        return self._rt

    def lock(
        self,
        name: str,
        *,
        lease: Seconds = 30,
        wait: Wait = None,
        renew: bool = True,
        max_hold: Seconds | None = None,
        grace: Seconds = 0,
        acks: int | str | None = None,
        on_lost: OnLost = "raise",
        label: str | None = None,
    ) -> Lock:
        """A fair lock: one holder at a time, waiters served in the order they came.

        Over several primaries the order is not promised (docs/redlock.md).

        lease      seconds after which the lock of a crashed holder is free again
        wait       patience of `with`, `acquire()` and decorated calls; None: without bound, 0: try
        renew      prolong the lease while it is held (whatever the lease is)
        max_hold   renew no longer than this, and count the lock as lost then
        grace      the server keeps the lock this much longer than the holder believes in it
        acks       so many replicas ("all": every one) must confirm grant and renewals (WAIT); not
                   over several primaries
        on_lost    what the end of a block does when the lock was lost meanwhile: "raise" LockLost
                   (asyncio: the body is cancelled first), "warn", "ignore", or a function that is
                   called with the hold when it happens (blocking: from another thread)
        label      text for people, part of the owner id

        Sends nothing. Raises UsageError for arguments that cannot be right.
        """
        return Lock(
            self._kit,
            name,
            lease=lease,
            wait=wait,
            renew=renew,
            max_hold=max_hold,
            grace=grace,
            acks=acks,
            on_lost=on_lost,
            label=label,
        )

    def bootstrap(self) -> dict[str, HoldfastError | None]:
        """Declare several primaries to be a new deployment, which has no locks to forget.

        Without it new nodes grant nothing for `max_lease` + `clock_step`, like any that may have
        forgotten locks. Safe only while nobody holds or asks for a lock there. One round trip to
        every node; returns what went wrong on each, by name (None: nothing). UsageError on a single
        primary, and without a guard.
        """
        return run(bootstrap(self._kit))

    def close(self) -> None:
        """Close connections and end renewals; takes at most about a second. Idempotent.

        Holds that were not released are not renewed any more and end with their leases.
        """
        if not self._rt.closed:
            self._kit.keeper.close()
            self._rt.close()
            self._closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(_Base):
    """An asyncio client. Used in one event loop at a time; works under repeated `asyncio.run`."""

    _asynchronous = True

    def _runtime(self, deployments: list[Deployment], settings: Settings) -> Runtime:
        self._rt = AsyncioRuntime(deployments, settings, self._hub)
        return self._rt

    def lock(
        self,
        name: str,
        *,
        lease: Seconds = 30,
        wait: Wait = None,
        renew: bool = True,
        max_hold: Seconds | None = None,
        grace: Seconds = 0,
        acks: int | str | None = None,
        on_lost: OnLost = "raise",
        label: str | None = None,
    ) -> AsyncLock:
        """A fair lock: one holder at a time, waiters served in the order they came.

        Over several primaries the order is not promised (docs/redlock.md).

        lease      seconds after which the lock of a crashed holder is free again
        wait       patience of `with`, `acquire()` and decorated calls; None: without bound, 0: try
        renew      prolong the lease while it is held (whatever the lease is)
        max_hold   renew no longer than this, and count the lock as lost then
        grace      the server keeps the lock this much longer than the holder believes in it
        acks       so many replicas ("all": every one) must confirm grant and renewals (WAIT); not
                   over several primaries
        on_lost    what the end of a block does when the lock was lost meanwhile: "raise" LockLost
                   (asyncio: the body is cancelled first), "warn", "ignore", or a function that is
                   called with the hold when it happens (blocking: from another thread)
        label      text for people, part of the owner id

        Sends nothing. Raises UsageError for arguments that cannot be right.
        """
        lock: AsyncLock = self._kit.lock(
            self._kit,
            name,
            lease=lease,
            wait=wait,
            renew=renew,
            max_hold=max_hold,
            grace=grace,
            acks=acks,
            on_lost=on_lost,
            label=label,
        )
        return lock

    async def bootstrap(self) -> dict[str, HoldfastError | None]:
        """Declare several primaries to be a new deployment, which has no locks to forget.

        Without it new nodes grant nothing for `max_lease` + `clock_step`, like any that may have
        forgotten locks. Safe only while nobody holds or asks for a lock there. One round trip to
        every node; returns what went wrong on each, by name (None: nothing). UsageError on a single
        primary, and without a guard.
        """
        return await bootstrap(self._kit)

    async def close(self) -> None:
        """Close connections and end renewals; takes at most about a second. Idempotent.

        Holds that were not released are not renewed any more and end with their leases.
        """
        if not self._rt.closed:
            self._kit.keeper.close()
            await self._rt.close()
            self._closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def connect(
    target: Target,
    *,
    timeout: Seconds | None = None,
    drift: float = 0.01,
    clock_step: Seconds = 0.0,
    replica_skew: Seconds = 0.0,
    max_lease: Seconds | None = None,
    guard: bool = True,
) -> Client:
    """A blocking client for a URL, for an existing redis-py or valkey-py client, or "embedded:".

    URLs: redis:// rediss:// unix:// valkey:// redis+sentinel://host,host/service
    redis+cluster://host,host. An existing client lends its way of connecting (TLS, ACL, Sentinel,
    cluster), not its connections. "embedded:" starts a real server for development, one per
    process. A list of URLs or clients stands for several independent primaries, of which a
    majority decides (Redlock).

    timeout        seconds for one exchange with a server; no exchange is repeated silently. 2;
                   with several primaries 0.5, and never more than a twentieth of the lease's
                   validity (but 10 ms at least)
    drift          how far the clocks of client and server may run apart, as a fraction
    clock_step     by how many seconds a server's wall clock may jump forward during a lease
    replica_skew   how far the clocks of a primary and its replica may differ (failover)
    max_lease      the longest lease that locks of this client may ask for. 3600; with several
                   primaries 60, for so long a node that may have forgotten locks grants none: all
                   clients of a deployment give the same
    guard          with several primaries: whether such nodes wait. Off only if they never forget

    Sends nothing: the first call connects. Raises UsageError for a target that cannot be right.
    """
    return Client(
        target,
        timeout=timeout,
        drift=drift,
        clock_step=clock_step,
        replica_skew=replica_skew,
        max_lease=max_lease,
        guard=guard,
    )


def aconnect(
    target: Target,
    *,
    timeout: Seconds | None = None,
    drift: float = 0.01,
    clock_step: Seconds = 0.0,
    replica_skew: Seconds = 0.0,
    max_lease: Seconds | None = None,
    guard: bool = True,
) -> AsyncClient:
    """An asyncio client for a URL, an existing redis.asyncio or valkey.asyncio client, "embedded:".

    The same targets and settings as `holdfast.connect()`. Use it as `async with`, or close it.
    Sends nothing: the first call connects. Raises UsageError for a target that cannot be right.
    """
    return AsyncClient(
        target,
        timeout=timeout,
        drift=drift,
        clock_step=clock_step,
        replica_skew=replica_skew,
        max_lease=max_lease,
        guard=guard,
    )
