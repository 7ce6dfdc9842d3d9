"""The locks that are compared, asyncio. One client each; every task has a lock of its own name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from _floor import RELEASE_LUA, Pipe, raw_requests, recorded, renamed
from _peers import LEASE_S

from holdfast.server import Server


class AsyncPeer:
    """One library on one server. Locks have acquire() and release() unless a subclass differs."""

    title = ""
    remark = ""

    def __init__(self, server: Server, tasks: int) -> None:
        self.server = server
        self.tasks = tasks
        self.client: Any = None
        self._locks: list[Any] = []

    async def open(self) -> None:
        """Connect, and make the locks."""
        self.client = await self.connect()
        self._locks = [self.make(f"bench:{task:04d}") for task in range(self.tasks)]

    async def connect(self) -> Any:
        """The library's client."""
        raise NotImplementedError

    def make(self, name: str) -> Any:
        """A lock object."""
        raise NotImplementedError

    async def pairs(self, lock: Any, count: int) -> None:
        """What one task does."""
        for _ in range(count):
            await lock.acquire()
            await lock.release()

    async def run(self, count: int) -> None:
        """So many pairs in all, evenly over the tasks."""
        each = count // self.tasks
        await asyncio.gather(*(self.pairs(lock, each) for lock in self._locks))

    async def take(self, lock: Any) -> Any:
        """Acquire; returns what is released by `.release()`, or what is false."""
        return lock if await lock.acquire(blocking=False) else None

    async def check(self) -> None:
        """It excludes: while one object holds the lock, another does not get it; then it does."""
        one, two = self.make("bench:check"), self.make("bench:check")
        held = await self.take(one)
        assert held, f"{self.title}: a free lock was refused"
        assert not await self.take(two), f"{self.title}: a second holder was let in"
        await held.release()
        await (await self.take(two)).release()

    async def close(self) -> None:
        """Close the client."""
        await self.client.aclose()


class AsyncHoldfast(AsyncPeer):
    """Defaults, with the same lease as the others."""

    title = "holdfast"

    async def connect(self) -> Any:
        import holdfast.aio

        return holdfast.aio.connect(self.server.url)

    def make(self, name: str) -> Any:
        return self.client.lock(name, lease=LEASE_S)

    async def pairs(self, lock: Any, count: int) -> None:
        for _ in range(count):
            await (await lock.acquire()).release()

    async def take(self, lock: Any) -> Any:
        return await lock.try_acquire()

    async def close(self) -> None:
        await self.client.close()


class RawPipe(AsyncPeer):
    """Floor: SET and EVALSHA over one multiplexed connection, no lock on top."""

    title = "raw pipe: SET, EVALSHA"
    remark = "floor"

    async def connect(self) -> Any:
        loop = asyncio.get_running_loop()
        _, pipe = await loop.create_connection(Pipe, "127.0.0.1", self.server.port)
        return pipe

    def make(self, name: str) -> Any:
        return raw_requests(self.server, name, f"{name}:{'0' * 32}")

    async def pairs(self, lock: Any, count: int) -> None:
        acquire, release = lock
        ask = self.client.ask
        for _ in range(count):
            await ask(acquire)
            await ask(release)

    async def check(self) -> None:
        """The pair takes the lock and gives it back."""
        acquire, release = self.make("bench:check")
        assert await self.client.ask(acquire)
        assert await self.client.ask(release)

    async def close(self) -> None:
        self.client.close()


class OurScripts(RawPipe):
    """Floor: what holdfast sends, over the same connection, without holdfast."""

    title = "raw pipe: our scripts"

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._recorded = await loop.run_in_executor(None, recorded, self.server)
        await super().open()

    def make(self, name: str) -> Any:
        owner = f"{abs(hash(name)):032x}:benchmark:1:".encode()
        return tuple(renamed(request, name, owner) for request in self._recorded)

    async def check(self) -> None:
        acquire, release = self.make("bench:check")
        assert (await self.client.ask(acquire))[0] == 1
        assert (await self.client.ask(release))[0] == 1


class AsyncRedisPy(AsyncPeer):
    """redis.asyncio's Lock. Its default pool ends at 100 connections with an exception."""

    title = "redis.asyncio Lock, a connection per task"
    remark = "ConnectionPool(max_connections=tasks): the default of 100 raises under 1,000 tasks"

    def pool(self) -> Any:
        """A pool that has a connection for every task."""
        from redis.asyncio import ConnectionPool

        return ConnectionPool(
            host="127.0.0.1", port=self.server.port, max_connections=max(10, self.tasks + 10)
        )

    async def connect(self) -> Any:
        from redis.asyncio import Redis

        return Redis.from_pool(self.pool())

    def make(self, name: str) -> Any:
        return self.client.lock(name, timeout=LEASE_S)


class AsyncRedisPyQueued(AsyncRedisPy):
    """The same with fewer connections, for which tasks queue up."""

    title = "redis.asyncio Lock, BlockingConnectionPool(50)"
    remark = "its default size; timeout=None, as the default of 20 s is for outages"

    def pool(self) -> Any:
        from redis.asyncio import BlockingConnectionPool

        return BlockingConnectionPool(host="127.0.0.1", port=self.server.port, timeout=None)


class AsyncSemaphore(AsyncRedisPyQueued):
    """py-redis-semaphore's Mutex, with the pool that is quicker for redis-py."""

    title = "py-redis-semaphore Mutex"
    remark = "heartbeat task for each hold (cannot be turned off); BlockingConnectionPool(50)"

    def make(self, name: str) -> Any:
        from redis_semaphore import Mutex

        return Mutex(self.client, name, lock_timeout=LEASE_S)

    async def pairs(self, lock: Any, count: int) -> None:
        for _ in range(count):
            await lock.aacquire()
            await lock.arelease()

    async def check(self) -> None:
        one, two = self.make("bench:check"), self.make("bench:check")
        assert (await one.aacquire(blocking=False)).success
        assert not (await two.aacquire(blocking=False)).success
        await one.arelease()
        assert (await two.aacquire(blocking=False)).success
        await two.arelease()


class AsyncPottery(AsyncRedisPyQueued):
    """Pottery's AIORedlock with one master."""

    title = "pottery AIORedlock, 1 master"
    remark = "BlockingConnectionPool(50)"

    def make(self, name: str) -> Any:
        from pottery import AIORedlock

        return AIORedlock(key=name, masters={self.client}, auto_release_time=LEASE_S)


class Glide(AsyncPeer):
    """valkey-glide has no lock: its raw SET and EVALSHA, as its documentation shows them."""

    title = "valkey-glide raw SET, Script"
    remark = "no lock, only its two commands; invoke_script sends EVALSHA"

    async def connect(self) -> Any:
        import glide

        glide.Logger.init(glide.LogLevel.OFF)
        self._glide = glide
        self._script = glide.Script(RELEASE_LUA)
        self._expiry = glide.ExpirySet(glide.ExpiryType.SEC, LEASE_S)
        return await glide.GlideClient.create(
            glide.GlideClientConfiguration(
                [glide.NodeAddress("127.0.0.1", self.server.port)],
                request_timeout=5000,  # the default of 250 ms is short for a benchmark
                inflight_requests_limit=4 * max(250, self.tasks),
            )
        )

    def make(self, name: str) -> Any:
        return name, f"{name}:{'0' * 32}"

    async def acquire(self, lock: Any) -> bool:
        """SET NX EX."""
        condition = self._glide.ConditionalChange.ONLY_IF_DOES_NOT_EXIST
        return bool(await self.client.set(lock[0], lock[1], condition, self._expiry))

    async def release(self, lock: Any) -> bool:
        """EVALSHA of a compare-and-delete."""
        return bool(await self.client.invoke_script(self._script, [lock[0]], [lock[1]]))

    async def pairs(self, lock: Any, count: int) -> None:
        for _ in range(count):
            await self.acquire(lock)
            await self.release(lock)

    async def check(self) -> None:
        lock = self.make("bench:check")
        assert await self.acquire(lock)
        assert not await self.acquire(lock)
        assert await self.release(lock)

    async def close(self) -> None:
        await self.client.close()


class GlideCustom(Glide):
    """The same by custom_command, which leaves out glide's own argument handling."""

    title = "valkey-glide raw, custom_command"
    remark = "no lock; the same bytes as the raw pipe"

    def make(self, name: str) -> Any:
        sha = self.server.command("SCRIPT", "LOAD", RELEASE_LUA)
        owner = f"{name}:{'0' * 32}"
        return (
            ["SET", name, owner, "NX", "PX", "10000"],
            ["EVALSHA", sha, "1", name, owner],
        )

    async def acquire(self, lock: Any) -> bool:
        return bool(await self.client.custom_command(lock[0]))

    async def release(self, lock: Any) -> bool:
        return bool(await self.client.custom_command(lock[1]))


ASYNC_PEERS: list[type[AsyncPeer]] = [
    RawPipe,
    OurScripts,
    AsyncHoldfast,
    AsyncRedisPy,
    AsyncRedisPyQueued,
    AsyncSemaphore,
    AsyncPottery,
    Glide,
    GlideCustom,
]


async def opened(
    server: Any, tasks: int, notes: list[str], kinds: Sequence[type[Any]] = ASYNC_PEERS
) -> dict[str, Any]:
    """Every peer that installs, runs and excludes; for the others a note says why not."""
    found: dict[str, Any] = {}
    for kind in kinds:
        peer = kind(server, tasks)
        try:
            await peer.open()
            await peer.check()
            found[kind.title] = peer
        except Exception as error:
            notes.append(f"{kind.title} is left out: {type(error).__name__}: {error}")
    return found


Run = Callable[[int], Awaitable[None]]
