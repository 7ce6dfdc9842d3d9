"""The locks over several primaries that are compared, asyncio. Settings as in _quorum.py.

Under many tasks a node is given five seconds instead of half a one: what is slow then is the loop.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import _apart
import _fan
from _apeers import AsyncPeer
from _floor import NAME, RELEASE_LUA, Pipe, words
from _peers import LEASE_S
from _quorum import LEASE_MS, NODE_S

from holdfast.server import Server

PATIENCE_S = 5.0


class AsyncQuorumPeer(AsyncPeer):
    """One library over several servers."""

    def __init__(self, nodes: Sequence[Server], tasks: int) -> None:
        self.nodes = nodes
        self.tasks = tasks
        self.failed: Counter[str] = Counter()
        self.client: Any = None
        self._locks: list[Any] = []

    @property
    def node_s(self) -> float:
        """How long a node may say nothing."""
        return NODE_S if self.tasks == 1 else PATIENCE_S

    async def connect(self) -> Any:
        """A redis.asyncio client for each node, with as many connections as are quickest."""
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return [
            Redis.from_pool(
                BlockingConnectionPool(
                    host="127.0.0.1",
                    port=node.port,
                    timeout=None,
                    socket_timeout=self.node_s,
                    socket_connect_timeout=self.node_s,
                    retry=Retry(NoBackoff(), 0),
                )
            )
            for node in self.nodes
        ]

    async def pairs(self, lock: Any, count: int) -> None:
        grant = self.grant
        for _ in range(count):
            try:
                await (await grant(lock)).release()
            except Exception as error:
                self.failed[type(error).__name__] += 1

    async def grant(self, lock: Any) -> Any:
        """Acquire; returns what is released by `.release()`."""
        assert await lock.acquire() is not False, "refused"
        return lock

    async def close(self) -> None:
        for client in self.client:
            await client.aclose()


class RawPipes(AsyncQuorumPeer):
    """Floor: SET and EVALSHA over one multiplexed connection to each node, no lock on top."""

    title = _fan.Fan.title
    remark = "floor: written to all nodes, then read from all"

    async def connect(self) -> Any:
        loop = asyncio.get_running_loop()
        self._fences = _fan.fences()
        ends = [await loop.create_connection(Pipe, "127.0.0.1", it.port) for it in self.nodes]
        return [pipe for _, pipe in ends]

    def make(self, name: str) -> Any:
        return self._requests(_fan.raw(self.nodes, name))

    def _requests(self, pairs: Sequence[_fan.Pair]) -> Any:
        asks = [pipe.ask for pipe in self.client]
        acquires = [(ask, pieces) for ask, (pieces, _) in zip(asks, pairs, strict=True)]
        return acquires, [(ask, pieces) for ask, (_, pieces) in zip(asks, pairs, strict=True)]

    async def pairs(self, lock: Any, count: int) -> None:
        acquires, releases = lock
        fences = self._fences
        for _ in range(count):
            fence = next(fences)
            for future in [ask(fence.join(pieces)) for ask, pieces in acquires]:
                await future
            for future in [ask(fence.join(pieces)) for ask, pieces in releases]:
                await future

    async def check(self) -> None:
        """Every node grants, and takes the lock back."""
        acquires, releases = self.make("bench:check")
        fence = next(self._fences)
        for ask, pieces in (*acquires, *releases):
            assert _fan.granted(reply := await ask(fence.join(pieces))), reply

    async def close(self) -> None:
        for pipe in self.client:
            pipe.close()


class OurScripts(RawPipes):
    """Floor: what holdfast sends, over the same connections, without holdfast."""

    title = _fan.OurFan.title
    remark = ""

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._recorded = await loop.run_in_executor(None, _fan.recorded, self.nodes)
        release = next(_fan.fences()).join(self._recorded[0][1])
        self._owner = next(word for word in words(release) if word.count(b":") == 3)
        self._numbers = itertools.count()
        await super().open()

    def make(self, name: str) -> Any:
        # Of the same lengths, or the requests would have to be packed anew.
        number = next(self._numbers)
        new = b"%0*d" % (len(NAME), number), b"%032x" % number + self._owner[32:]

        def ours(request: bytes) -> bytes:
            return request.replace(NAME.encode(), new[0]).replace(self._owner, new[1])

        return self._requests(
            [
                (list(map(ours, acquire)), list(map(ours, release)))
                for acquire, release in self._recorded
            ]
        )


class AsyncHoldfast(AsyncQuorumPeer):
    """Defaults, with the same lease as the others."""

    title = "holdfast"

    async def connect(self) -> Any:
        import holdfast.aio

        return holdfast.aio.connect(_fan.target(self.nodes))

    def make(self, name: str) -> Any:
        return self.client.lock(name, lease=LEASE_S)

    async def grant(self, lock: Any) -> Any:
        return await lock.acquire()

    async def take(self, lock: Any) -> Any:
        return await lock.try_acquire()

    async def close(self) -> None:
        await self.client.close()


class AsyncTextbookLock:
    """SET on one node after the other, then the script on each."""

    def __init__(self, clients: Sequence[Any], name: str) -> None:
        self._clients = clients
        self._name = name
        self._script = clients[0].register_script(RELEASE_LUA)
        self._token = ""

    async def acquire(self, blocking: bool = True) -> bool:
        """A majority of the nodes grants, or nothing stays. It does not wait."""
        from redis.exceptions import RedisError

        self._token = secrets.token_hex(16)
        votes = 0
        for client in self._clients:
            try:
                votes += bool(await client.set(self._name, self._token, nx=True, px=LEASE_MS))
            except RedisError:
                pass
        if votes > len(self._clients) // 2:
            return True
        await self.release()
        return False

    async def release(self) -> None:
        """Give back whatever any node granted."""
        from redis.exceptions import RedisError

        for client in self._clients:
            try:
                await self._script(keys=[self._name], args=[self._token], client=client)
            except RedisError:
                pass


class AsyncTextbook(AsyncQuorumPeer):
    """redis.asyncio and a loop."""

    title = "redis.asyncio, one node after the other"
    remark = "SET NX PX, then EVALSHA, on each; BlockingConnectionPool(50), no retries"

    def make(self, name: str) -> Any:
        return AsyncTextbookLock(self.client, name)


class AsyncPottery(AsyncQuorumPeer):
    """Pottery's AIORedlock: all nodes at once, and all are waited for."""

    title = "pottery AIORedlock"
    remark = "clients given: BlockingConnectionPool(50), no retries"

    def make(self, name: str) -> Any:
        from pottery import AIORedlock

        return AIORedlock(key=name, masters=set(self.client), auto_release_time=LEASE_S)


class AsyncManagedLock:
    """A lock of a library whose manager takes and gives back."""

    def __init__(
        self, acquire: Callable[[], Awaitable[Any]], release: Callable[[Any], Awaitable[Any]]
    ) -> None:
        self._acquire = acquire
        self._release = release
        self._hold: Any = None

    async def acquire(self, blocking: bool = True) -> bool:
        """It does not wait."""
        self._hold = await self._acquire()
        return bool(self._hold)

    async def release(self) -> None:
        """Give it back."""
        await self._release(self._hold)


class AsyncRedlockNg(AsyncQuorumPeer):
    """redlock-ng: all nodes at once, and all are waited for. It makes its clients by itself."""

    title = "redlock-ng AsyncRedlock"
    remark = (
        "1 task: 0.1 s a node (default); many: 5 s, and a connection for each (its pool raises "
        "where it ends)"
    )

    async def connect(self) -> Any:
        library = _apart.module("redlock-ng")
        masters = [f"{node.url}?max_connections={self.tasks + 10}" for node in self.nodes]
        patience = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S}
        config = library.RedlockConfig(masters=masters, **(patience if self.tasks > 1 else {}))
        return library.AsyncRedlock(config, retry_count=0)

    def make(self, name: str) -> Any:
        manager = self.client
        return AsyncManagedLock(lambda: manager.acquire(name, LEASE_MS), manager.release)

    async def close(self) -> None:
        for client in self.client.client.instances:
            await client.aclose()


class AsyncAioredlock(AsyncQuorumPeer):
    """aioredlock: all nodes at once, and all are waited for, without a timeout."""

    title = "aioredlock"
    remark = "on aioredis 1.3.1; no timeout for a node; lock_timeout given, so nothing is renewed"

    async def connect(self) -> Any:
        import aioredlock

        where = [{"host": "127.0.0.1", "port": node.port} for node in self.nodes]
        return aioredlock.Aioredlock(where, retry_count=1)

    def make(self, name: str) -> Any:
        manager = self.client
        return AsyncManagedLock(lambda: manager.lock(name, lock_timeout=LEASE_S), manager.unlock)

    async def take(self, lock: Any) -> Any:
        from aioredlock.errors import LockError

        try:
            return await super().take(lock)
        except LockError:
            return None

    async def close(self) -> None:
        await self.client.destroy()


ASYNC_PEERS: list[type[AsyncQuorumPeer]] = [
    AsyncHoldfast,
    AsyncTextbook,
    AsyncPottery,
    AsyncRedlockNg,
    AsyncAioredlock,
]
ALL: list[type[AsyncQuorumPeer]] = [RawPipes, OurScripts, *ASYNC_PEERS]
