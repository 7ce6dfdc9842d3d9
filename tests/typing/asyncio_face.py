"""A user's program over the asyncio face, for type checkers only: nothing here is run.

The twin of blocking.py, function by function. A forgotten `await` is an error here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

import redis.asyncio

import holdfast.aio
from holdfast import aio, events


async def connecting(cluster: redis.asyncio.RedisCluster, service: redis.asyncio.Redis) -> None:
    assert_type(aio.connect("redis://localhost:6379/0"), aio.Client)
    assert_type(holdfast.aio.connect("embedded:", timeout=timedelta(seconds=1)), aio.Client)
    assert_type(aio.connect(redis.asyncio.Redis()), aio.Client)
    assert_type(aio.connect(cluster, drift=0.02, clock_step=1), aio.Client)
    assert_type(aio.connect(service, replica_skew=0.5), aio.Client)
    assert_type(aio.connect(["redis://a", service], guard=False), aio.Client)
    async with aio.connect("unix:///tmp/server.sock", max_lease=60) as hf:
        assert_type(hf, aio.Client)
    assert_type(await hf.bootstrap(), dict[str, holdfast.HoldfastError | None])
    assert_type(await hf.close(), None)
    with aio.connect("redis://localhost"):  # type: ignore[attr-defined]
        pass
    hf.close()  # type: ignore[unused-coroutine]
    aio.connect()  # type: ignore[call-arg]
    aio.connect("redis://localhost", timeout="1 s")  # type: ignore[arg-type]
    aio.connect("redis://localhost", retries=3)  # type: ignore[call-arg]


async def locking(hf: aio.Client) -> None:
    lock = hf.lock("order:123", lease=30, wait=timedelta(seconds=5), label="billing")
    assert_type(lock, aio.Lock)
    assert_type(lock.name, str)
    async with lock as hold:
        assert_type(hold, aio.Hold)
    async with hf.lock("a") as first, hf.lock("b", renew=False, max_hold=60.0, grace=2) as second:
        assert_type((first, second), tuple[aio.Hold, aio.Hold])
    hf.lock("c", acks=1)
    hf.lock("c", acks="all")
    with lock:  # type: ignore[attr-defined]
        pass
    hf.lock()  # type: ignore[call-arg]
    hf.lock("c", lease="30")  # type: ignore[arg-type]
    hf.lock("c", lease=None)  # type: ignore[arg-type]
    hf.lock("c", 30)  # type: ignore[call-arg]
    hf.lock("c", ttl=30)  # type: ignore[call-arg]


async def acquiring(lock: aio.Lock) -> int:
    assert_type(await lock.acquire(), aio.Hold)
    assert_type(await lock.acquire(None), aio.Hold)
    assert_type(await lock.acquire(wait=timedelta(milliseconds=50)), aio.Hold)
    lock.acquire()  # type: ignore[unused-coroutine]
    await lock.acquire(wait="soon")  # type: ignore[arg-type]
    hold = await lock.try_acquire()
    assert_type(hold, aio.Hold | None)
    await hold.release()  # type: ignore[union-attr]
    if hold is None:
        return 0
    assert_type(hold, aio.Hold)
    return hold.fence


async def holding(hold: aio.Hold) -> None:
    assert_type(hold.name, str)
    assert_type(hold.fence, int)
    assert_type(hold.owner, str)
    assert_type(hold.remaining(), float)
    assert_type(hold.is_lost(), bool)
    assert_type(hold.ensure(), None)
    assert_type(await hold.extend(timedelta(minutes=1)), None)
    assert_type(await hold.extend(60), None)
    assert_type(await hold.release(), None)
    assert_type(hold.lost, aio.Lost)
    assert_type(hold.lost.is_set(), bool)
    assert_type(await hold.lost.wait(), bool)
    assert_type(await hold.lost.wait(timeout=1.5), bool)
    hold.release()  # type: ignore[unused-coroutine]
    await hold.extend()  # type: ignore[call-arg]


async def looking(lock: aio.Lock) -> None:
    info = await lock.info()
    assert_type(info, aio.LockInfo)
    assert_type(info.name, str)
    assert_type(info.holder, str | None)
    assert_type(info.label, str)
    assert_type(info.expires_in, float | None)
    assert_type(info.fence, int)
    assert_type(info.waiting, int)
    assert_type(info.waiters, tuple[str, ...])
    assert_type(await lock.force_release(), str | None)
    info.fence = 7  # type: ignore[misc]


async def decorating(hf: aio.Client) -> None:
    @hf.lock("report", wait=0)
    async def report(day: str, copies: int = 1) -> list[bytes]:
        return [day.encode()] * copies

    assert_type(await report("monday"), list[bytes])
    assert_type(await report(day="monday", copies=2), list[bytes])
    running = assert_type(report("monday"), Coroutine[Any, Any, list[bytes]])
    assert_type(await running, list[bytes])
    report("monday")  # type: ignore[unused-coroutine]
    await report()  # type: ignore[call-arg]
    await report("monday", 2, 3)  # type: ignore[call-arg]
    await report("monday", copies="2")  # type: ignore[arg-type]
    await report(date="monday")  # type: ignore[call-arg]

    class Account:
        @hf.lock("account")
        async def withdraw(self, amount: int) -> int:
            return -amount

    assert_type(await Account().withdraw(5), int)
    await Account().withdraw("5")  # type: ignore[arg-type]

    @hf.lock("report")  # type: ignore[arg-type]
    def plain() -> int:
        return 1


def told(hold: aio.Hold) -> None:
    """An `on_lost` function may name the type that it is given."""


async def losing(hf: aio.Client, anything: Callable[[object], int]) -> None:
    hf.lock("a", on_lost="raise")
    hf.lock("a", on_lost="warn")
    hf.lock("a", on_lost="ignore")
    hf.lock("a", on_lost=told)
    hf.lock("a", on_lost=anything)
    hf.lock("a", on_lost=lambda hold: print("lost", hold))
    hf.lock("a", on_lost="shout")  # type: ignore[arg-type]
    hf.lock("a", on_lost=lambda: None)  # type: ignore[arg-type, misc]


async def failing(lock: aio.Lock) -> None:
    try:
        async with lock:
            pass
    except aio.LockTimeout as error:
        assert_type(error.holder, str | None)
        assert_type(error.waited, float)
    except aio.Timeout as error:
        assert_type(error.waited, float)
    except aio.LockLost as error:
        assert_type(error.reason, str)
        assert_type(error.result, object)
    except aio.NodeError as error:
        assert_type(error.node, str)
        assert_type(error.sent, bool)
        assert_type(error.transient, bool)
    except aio.NotReplicated as error:
        assert_type((error.wanted, error.got), tuple[int, int])
    except aio.QuorumError as error:
        assert_type(error.votes, dict[str, str])
    except (aio.Unavailable, aio.UsageError, aio.ServerNotFound) as error:
        assert_type(error.name, str | None)
    except aio.HoldfastError as error:
        assert_type(error.name, str | None)
    except aio.LockLostWarning as warning:
        standard: UserWarning = warning
        print(standard)


def kinds(
    timeout: aio.LockTimeout, node: aio.NodeError, usage: aio.UsageError
) -> tuple[TimeoutError, ConnectionError, ValueError]:
    """The errors are also the standard ones that callers may already handle."""
    return timeout, node, usage


async def observing(hf: aio.Client) -> None:
    def observer(event: events.Event) -> None:
        assert_type(event.name, str)
        assert_type(event.owner, str)
        if isinstance(event, events.Granted):
            assert_type((event.fence, event.waited), tuple[int, float])
        elif isinstance(event, events.Lost):
            assert_type((event.fence, event.reason), tuple[int, str])

    end = hf.subscribe(observer, [events.Granted, events.Lost])
    assert_type(end, Callable[[], None])
    hf.subscribe(print)
    hf.subscribe(observer, [int])  # type: ignore[list-item]
