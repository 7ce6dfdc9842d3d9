"""The locks over several primaries that are compared, blocking.

Every lock has a lease of ten seconds. A node that says nothing is given up after half a second,
which is holdfast's default; and commands are not repeated (redis-py would do it three times). Where
a library decides that by itself, its remark says so.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import _apart
import _fan
from _floor import RELEASE_LUA
from _peers import LEASE_S, Peer

from holdfast.server import Server

NODE_S = 0.5
LEASE_MS = LEASE_S * 1000


class QuorumPeer(Peer):
    """One library over several servers."""

    def __init__(self, nodes: Sequence[Server]) -> None:
        self.nodes = nodes
        self.failed: Counter[str] = Counter()
        self.client = self.connect()

    def connect(self, **kwargs: Any) -> Any:
        """A redis-py client for each node."""
        import redis

        return [redis.Redis(**{**_settings(), **kwargs}, port=node.port) for node in self.nodes]

    def reused(self, name: str) -> Callable[[int], None]:
        """Pairs on one lock object; those that fail are counted."""
        lock = self.make(name)

        def pairs(count: int) -> None:
            take = self.take
            for _ in range(count):
                try:
                    take(lock).release()
                except Exception as error:
                    self.failed[type(error).__name__] += 1

        return pairs

    def close(self) -> None:
        for client in self.client:
            client.close()


def _settings() -> dict[str, Any]:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return {
        "host": "127.0.0.1",
        "socket_timeout": NODE_S,
        "socket_connect_timeout": NODE_S,
        "retry": Retry(NoBackoff(), 0),
    }


class Holdfast(QuorumPeer):
    """Defaults, with the same lease as the others; it renews, queues, fences and guards besides."""

    title = "holdfast"

    def connect(self, **kwargs: Any) -> Any:
        import holdfast

        return holdfast.connect(_fan.target(self.nodes))

    def make(self, name: str) -> Any:
        return self.client.lock(name, lease=LEASE_S)

    def take(self, lock: Any) -> Any:
        return lock.acquire()

    def tries(self, lock: Any) -> bool:
        return lock.try_acquire() is not None

    def close(self) -> None:
        self.client.close()


class TextbookLock:
    """Redlock as textbooks have it: SET on one node after the other, then the script on each."""

    def __init__(self, clients: Sequence[Any], name: str) -> None:
        self._clients = clients
        self._name = name
        self._script = clients[0].register_script(RELEASE_LUA)
        self._token = ""

    def acquire(self, blocking: bool = True) -> bool:
        """A majority of the nodes grants, or nothing stays. It does not wait."""
        from redis.exceptions import RedisError

        self._token = secrets.token_hex(16)
        votes = 0
        for client in self._clients:
            try:
                votes += bool(client.set(self._name, self._token, nx=True, px=LEASE_MS))
            except RedisError:
                pass
        if votes > len(self._clients) // 2:
            return True
        self.release()
        return False

    def release(self) -> None:
        """Give back whatever any node granted."""
        from redis.exceptions import RedisError

        for client in self._clients:
            try:
                self._script(keys=[self._name], args=[self._token], client=client)
            except RedisError:
                pass


class Textbook(QuorumPeer):
    """redis-py and a loop."""

    title = "redis-py, one node after the other"
    remark = "SET NX PX, then EVALSHA, on each; socket_timeout=0.5, no retries"

    def make(self, name: str) -> Any:
        return TextbookLock(self.client, name)


class Pottery(QuorumPeer):
    """Pottery's Redlock: a pool of threads is started for every attempt."""

    title = "pottery Redlock"
    remark = (
        "a thread for each node and request; clients given, with socket_timeout=0.5, no retries"
    )

    def make(self, name: str) -> Any:
        from pottery import Redlock

        return Redlock(key=name, masters=set(self.client), auto_release_time=LEASE_S)


class ManagedLock:
    """A lock of a library whose manager takes and gives back."""

    def __init__(self, acquire: Callable[[], Any], release: Callable[[Any], Any]) -> None:
        self._acquire = acquire
        self._release = release
        self._hold: Any = None

    def acquire(self, blocking: bool = True) -> bool:
        """It does not wait."""
        self._hold = self._acquire()
        return bool(self._hold)

    def release(self) -> None:
        """Give it back."""
        self._release(self._hold)


class RedlockNg(QuorumPeer):
    """redlock-ng: one node after the other. It makes its clients by itself."""

    title = "redlock-ng Redlock"
    remark = (
        "installed without its pin redis<6; makes its clients by itself: 0.1 s a node (default)"
    )

    def connect(self, **kwargs: Any) -> Any:
        return _apart.module("redlock-ng").Redlock([node.url for node in self.nodes], retry_count=0)

    def make(self, name: str) -> Any:
        manager = self.client
        return ManagedLock(lambda: manager.acquire(name, LEASE_MS), manager.release)

    def close(self) -> None:
        for client in self.client.client.instances:
            client.close()


class RedlockPy(QuorumPeer):
    """redlock-py: one node after the other. A node that fails makes it raise after the quorum."""

    title = "redlock-py Redlock"
    remark = "clients given, with socket_timeout=0.5, no retries"

    def connect(self, **kwargs: Any) -> Any:
        self._clients = super().connect()
        return _apart.module("redlock-py").Redlock(self._clients, retry_count=1, retry_delay=0.001)

    def make(self, name: str) -> Any:
        manager = self.client
        return ManagedLock(lambda: manager.lock(name, LEASE_MS), manager.unlock)

    def close(self) -> None:
        for client in self._clients:
            client.close()


class Glasslion(QuorumPeer):
    """The package `redlock`: one node after the other. A node that fails ends the attempt."""

    title = "redlock RedLock"
    remark = "clients given, with socket_timeout=0.5, no retries"

    def make(self, name: str) -> Any:
        lock = _apart.module("redlock").RedLock(name, self.client, retry_times=1, ttl=LEASE_MS)
        return ManagedLock(lock.acquire, lambda _: lock.release())


PEERS: list[type[QuorumPeer]] = [Holdfast, Textbook, Pottery, RedlockNg, RedlockPy, Glasslion]
