"""The locks that are compared, blocking. Each with the settings its own documentation recommends.

Every lock has a lease of about ten seconds, so that a crashed holder does not block for ever; the
comments say where a setting is not the library's default, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.server import Server

LEASE_S = 10


class Peer:
    """One library on one server. Locks have acquire() and release() unless a subclass differs."""

    title = ""
    remark = ""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = self.connect()

    def connect(self, **kwargs: Any) -> Any:
        """redis-py's client with its defaults, unless told otherwise."""
        import redis

        return redis.Redis(host="127.0.0.1", port=self.server.port, **kwargs)

    def make(self, name: str) -> Any:
        """A lock object. Sends nothing that the library does not send by itself."""
        raise NotImplementedError

    def take(self, lock: Any) -> Any:
        """Acquire, waiting as long as it takes; returns what is released by `.release()`."""
        assert lock.acquire() is not False
        return lock

    def tries(self, lock: Any) -> bool:
        """Whether an attempt that does not wait gets the lock."""
        return bool(lock.acquire(blocking=False))

    def reused(self, name: str) -> Callable[[int], None]:
        """Pairs on one lock object."""
        lock = self.make(name)

        def pairs(count: int) -> None:
            for _ in range(count):
                lock.acquire()
                lock.release()

        return pairs

    def fresh(self, name: str) -> Callable[[int], None]:
        """Pairs with a lock object made for each, in a `with` block."""

        def pairs(count: int) -> None:
            for _ in range(count):
                with self.make(name):
                    pass

        return pairs

    def check(self) -> None:
        """It excludes: while one object holds the lock, another does not get it; then it does."""
        one, two = self.make("bench:check"), self.make("bench:check")
        held = self.take(one)
        assert not self.tries(two), f"{self.title}: a second holder was let in"
        held.release()
        self.take(two).release()

    def close(self) -> None:
        """Close the client."""
        self.client.close()


class Holdfast(Peer):
    """Defaults, with the same lease as the others; it renews, queues and fences besides."""

    title = "holdfast"

    def connect(self, **kwargs: Any) -> Any:
        import holdfast

        return holdfast.connect(self.server.url)

    def make(self, name: str) -> Any:
        return self.client.lock(name, lease=LEASE_S)

    def take(self, lock: Any) -> Any:
        return lock.acquire()

    def tries(self, lock: Any) -> bool:
        return lock.try_acquire() is not None

    def reused(self, name: str) -> Callable[[int], None]:
        lock = self.make(name)

        def pairs(count: int) -> None:
            for _ in range(count):
                lock.acquire().release()

        return pairs


class HoldfastDefault(Holdfast):
    """Its own defaults: a lease of 30 s."""

    title = "holdfast, lease=30 (default)"

    def make(self, name: str) -> Any:
        return self.client.lock(name)


class RedisPy(Peer):
    """redis-py's own Lock: defaults, and a timeout, for without one it never expires."""

    title = "redis-py Lock"
    remark = "sleep=0.1 (default), no renewal, not fair"
    sleep = 0.1

    def make(self, name: str) -> Any:
        return self.client.lock(name, timeout=LEASE_S, sleep=self.sleep)


class RedisPyEager(RedisPy):
    """The same, asking a hundred times as often while it waits."""

    title = "redis-py Lock, sleep=0.001"
    remark = "polls a thousand times a second and waiter"
    sleep = 0.001


class RedisLock(Peer):
    """python-redis-lock. Renewal (a thread for each hold) is off, which is its default."""

    title = "python-redis-lock"
    remark = "auto_renewal off (default); 3 commands a pair"

    def connect(self, **kwargs: Any) -> Any:
        # It waits in BLPOP for as long as the lease; redis-py's default socket timeout of 5 s
        # would break into that.
        return super().connect(socket_timeout=None)

    def make(self, name: str) -> Any:
        import redis_lock

        return redis_lock.Lock(self.client, name, expire=LEASE_S)


class Pottery(Peer):
    """Pottery's Redlock with one master. It starts a thread pool for every attempt."""

    title = "pottery Redlock, 1 master"
    remark = "auto_release_time=10 (default)"

    def make(self, name: str) -> Any:
        from pottery import Redlock

        return Redlock(key=name, masters={self.client}, auto_release_time=LEASE_S)


class Semaphore(Peer):
    """py-redis-semaphore's Mutex. Its heartbeat (a thread for each hold) cannot be turned off."""

    title = "py-redis-semaphore Mutex"
    remark = "BLPOP mode and heartbeat (defaults)"

    def make(self, name: str) -> Any:
        from redis_semaphore import Mutex

        return Mutex(self.client, name, lock_timeout=LEASE_S)

    def take(self, lock: Any) -> Any:
        assert lock.acquire().success
        return lock

    def tries(self, lock: Any) -> bool:
        return bool(lock.acquire(blocking=False).success)


class Portalocker(Peer):
    """portalocker's RedisLock: a lock is a subscription, each with a thread of its own."""

    title = "portalocker RedisLock"
    remark = "client given, so that it does not connect anew for commands; check_interval default"

    def connect(self, **kwargs: Any) -> Any:
        # As its own DEFAULT_REDIS_KWARGS.
        return super().connect(health_check_interval=10, decode_responses=True)

    def make(self, name: str, **kwargs: Any) -> Any:
        import portalocker

        # The default patience of 5 s would end in an exception under contention.
        return portalocker.RedisLock(
            name, connection=self.client, timeout=120, interrupt_on_lost=False, **kwargs
        )

    def tries(self, lock: Any) -> bool:
        import portalocker

        try:
            lock.acquire(fail_when_locked=True)
        except portalocker.exceptions.AlreadyLocked:
            return False
        return True


class Token(Peer):
    """A floor for handing over: one token in a list, BLPOP and LPUSH. No lease, no crash safety."""

    title = "raw token (BLPOP, LPUSH)"
    remark = "floor: the server's own queue, nothing else; not a lock (no lease)"

    def connect(self, **kwargs: Any) -> Any:
        from _token import TokenClient

        return TokenClient(self.server.port)

    def make(self, name: str) -> Any:
        return self.client.lock(name)

    def check(self) -> None:
        """Nothing to check: a list with one element has one taker."""


PEERS: list[type[Peer]] = [
    Holdfast,
    HoldfastDefault,
    RedisPy,
    RedisLock,
    Pottery,
    Semaphore,
    Portalocker,
]
CONTENDERS: dict[str, type[Peer]] = {
    peer.title: peer for peer in (Token, Holdfast, RedisPy, RedisPyEager, *PEERS[3:])
}


def opened(peers: list[Any], server: Server, notes: list[str]) -> dict[str, Any]:
    """Every peer that installs, runs and excludes; for the others a note says why not."""
    found = {}
    for kind in peers:
        try:
            peer = kind(server)
            peer.check()
            found[kind.title] = peer
        except Exception as error:
            notes.append(f"{kind.title} is left out: {type(error).__name__}: {error}")
    return found
