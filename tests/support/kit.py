"""One test body, every colour: blocking, asyncio, and (with the simulator's own issue) simulated.

A conformance test is a coroutine that is given a `Kit`. Over the blocking face its awaits return
where they stand, and the same `run()` that drives protocols drives the test; over asyncio it is a
task. A kit also knows the deployment: which server, over which transport, and a plain client of
redis-py to look at the keys and to play the stranger.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

import holdfast
import holdfast.aio
from holdfast.core.runtime import run
from holdfast.server import newest

_AWAITED = {
    "acquire", "try_acquire", "release", "extend", "info", "force_release", "close", "wait",
    "bootstrap",
}  # fmt: skip


# For what only one primary promises: the order of waiters, and the keys that keep it.
one_primary = pytest.mark.deployments(lambda label: not label.startswith("quorum"))


class Awaited:
    """A blocking object whose methods are awaited, so that one test reads the same in each colour."""

    def __init__(self, blocking: Any) -> None:
        self.blocking = blocking

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.blocking, name)
        if name == "lock":
            return lambda *args, **kwargs: Awaited(value(*args, **kwargs))
        if name == "lost":
            return Awaited(value)
        if name not in _AWAITED:
            return value

        async def method(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            return Awaited(result) if isinstance(result, holdfast.Hold) else result

        return method

    async def __aenter__(self) -> Any:
        entered = self.blocking.__enter__()
        return Awaited(entered) if isinstance(entered, holdfast.Hold) else self

    async def __aexit__(self, *error: Any) -> Any:
        return self.blocking.__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> Any:
        """As a decorator: a test gives a coroutine function, the blocking lock wants a plain one."""
        plain = self.blocking(lambda *args, **kwargs: run(function(*args, **kwargs)))

        async def locked(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs)

        return locked

    def __repr__(self) -> str:
        return repr(self.blocking)


@dataclass
class Deployment:
    """Something to connect to, and how to look at it from outside."""

    label: str
    url: Any  # a list of them for several primaries
    raw: Callable[[], Any]
    server: Any = None  # the holdfast.server.Server, where it is a single one
    cluster: Any = None
    sentinel: Any = None
    members: tuple[Any, ...] = ()  # the servers of a quorum
    options: dict[str, Any] = field(default_factory=dict)  # which every client gives to connect()


@dataclass
class Flow:
    """Something spawned: a thread or a task."""

    done: Callable[[], bool]
    wait: Callable[[], Coroutine[Any, Any, Any]]
    cancel: Callable[[], None] | None = None


@dataclass
class Kit:
    """What a conformance test is given."""

    deployment: Deployment
    name: str
    colour: str = ""
    hf: Any = None
    _clients: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.raw = self.deployment.raw()

    def lock(self, name: str | None = None, **options: Any) -> Any:
        """A lock of the kit's client; by default the test's own name."""
        return self.hf.lock(name or self.name, **options)

    def many(self, usual: int, most: int) -> int:
        """How often to do something: `most` on one of the deployments, `usual` on the others."""
        return most if self.deployment.label == f"{newest().label}-unix" else usual

    def left(self) -> list[str]:
        """Every key of the test's lock that exists now."""
        from holdfast.core.keys import aux

        parts = [self.name, *(aux(self.name, p) for p in ("fence", "queue", "waiters"))]
        return [key for key in parts if self.raw.exists(key)]

    def owner(self) -> str | None:
        """The value of the lock's key."""
        value = self.raw.get(self.name)
        return value.decode() if isinstance(value, bytes) else value

    async def warm(self, hf: Any, name: str) -> None:
        """Have the client connected to every node, with the scripts known there, and nothing owed."""
        servers = getattr(self.raw, "clients", [self.raw])
        everywhere = False
        for _ in range(50):
            hold = await hf.lock(name).acquire()
            await self.sleep(0.05)
            everywhere = all(raw.get(name) == hold.owner.encode() for raw in servers)
            await hold.release()
            await self.sleep(0.05)
            if everywhere:
                return
        raise AssertionError("a node stays without the lock")

    async def end(self, hold: Any) -> None:
        """Release a hold that may be lost, or that its nodes cannot be asked about."""
        try:
            await hold.release()
        except (holdfast.LockLost, holdfast.Unavailable):
            pass

    async def held_everywhere(self, hold: Any) -> None:
        """Wait until every node has the hold: a majority was enough to be granted it."""
        servers = getattr(self.raw, "clients", [self.raw])
        began = time.monotonic()
        while any(raw.get(hold.name) != hold.owner.encode() for raw in servers):
            assert time.monotonic() - began < 5, "not held on every node"
            # Which asks those again that were not connected to before; they take it for as long.
            await hold.extend(max(0.5, hold.remaining()))
            await self.sleep(0.01)

    async def eventually(self, condition: Callable[[], bool], within: float = 5.0) -> float:
        """Wait until the condition holds; how long it took. Fails when it does not in time."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < within, f"not within {within} s"
            await self.sleep(0.005)
        return time.monotonic() - began

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def connect(self, url: Any = None, **options: Any) -> Any:
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Flow:
        raise NotImplementedError

    def execute(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        raise NotImplementedError


class BlockingKit(Kit):
    """Threads."""

    def connect(self, url: Any = None, **options: Any) -> Any:
        url = self.deployment.url if url is None else url
        client = holdfast.connect(url, **{**self.deployment.options, **options})
        self._clients.append(client)
        return Awaited(client)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Flow:
        outcome: list[Any] = []

        def body() -> None:
            try:
                outcome.append((run(work), None))
            except BaseException as error:
                outcome.append((None, error))

        thread = threading.Thread(target=body, daemon=True)
        thread.start()

        async def wait() -> Any:
            thread.join(30)
            assert not thread.is_alive(), "a spawned flow did not end"
            result, error = outcome[0]
            if error is not None:
                raise error
            return result

        return Flow(lambda: not thread.is_alive(), wait)

    def execute(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.hf = self.connect()
        try:
            run(test())
        finally:
            for client in self._clients:
                client.close()


class AsyncioKit(Kit):
    """Tasks."""

    def connect(self, url: Any = None, **options: Any) -> Any:
        url = self.deployment.url if url is None else url
        client = holdfast.aio.connect(url, **{**self.deployment.options, **options})
        self._clients.append(client)
        return client

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Flow:
        task = asyncio.get_running_loop().create_task(work)

        async def wait() -> Any:
            return await asyncio.wait_for(task, 30)

        return Flow(task.done, wait, task.cancel)

    def execute(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            self.hf = self.connect()
            try:
                await test()
            finally:
                for client in self._clients:
                    await client.close()

        asyncio.run(main())


class Everywhere:
    """Plain clients of several primaries as one: does it on each, answers what most of them do."""

    def __init__(self, clients: list[redis.Redis]) -> None:
        self.clients = clients

    def __getattr__(self, name: str) -> Any:
        if not callable(getattr(self.clients[0], name)):
            return getattr(self.clients[0], name)

        def on_each(*args: Any, **kwargs: Any) -> Any:
            answers = [getattr(client, name)(*args, **kwargs) for client in self.clients]
            if all(type(answer) is int for answer in answers):
                return sorted(answers)[len(answers) // 2]  # a TTL is not the same everywhere
            return max(answers, key=answers.count)

        return on_each


# The simulated colour joins here: a Kit over holdfast.sim, the same bodies, virtual time.
COLOURS: dict[str, type[Kit]] = {"blocking": BlockingKit, "asyncio": AsyncioKit}


def plain(url: str, **options: Any) -> redis.Redis:
    """A plain client of redis-py, which decodes nothing and repeats nothing."""
    return redis.Redis.from_url(url, retry=None, **options)
