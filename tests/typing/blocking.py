"""A user's program over the blocking face, for type checkers only: nothing here is run.

`assert_type` fixes what the checkers infer. A `# type: ignore` on a wrong line proves that it is an
error: were it none, the ignore itself would be reported as unused.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import assert_type

import redis

import holdfast
from holdfast import events


def connecting(cluster: redis.RedisCluster, service: redis.Redis) -> None:
    assert_type(holdfast.connect("redis://localhost:6379/0"), holdfast.Client)
    assert_type(holdfast.connect("embedded:", timeout=timedelta(seconds=1)), holdfast.Client)
    assert_type(holdfast.connect(redis.Redis()), holdfast.Client)
    assert_type(holdfast.connect(cluster, drift=0.02, clock_step=1), holdfast.Client)
    assert_type(holdfast.connect(service, replica_skew=0.5), holdfast.Client)
    assert_type(holdfast.connect(["redis://a", service], guard=False), holdfast.Client)
    with holdfast.connect("unix:///tmp/server.sock", max_lease=60) as hf:
        assert_type(hf, holdfast.Client)
    assert_type(hf.bootstrap(), dict[str, holdfast.HoldfastError | None])
    assert_type(hf.close(), None)
    holdfast.connect()  # type: ignore[call-arg]
    holdfast.connect("redis://localhost", timeout="1 s")  # type: ignore[arg-type]
    holdfast.connect("redis://localhost", retries=3)  # type: ignore[call-arg]


def locking(hf: holdfast.Client) -> None:
    lock = hf.lock("order:123", lease=30, wait=timedelta(seconds=5), label="billing")
    assert_type(lock, holdfast.Lock)
    assert_type(lock.name, str)
    with lock as hold:
        assert_type(hold, holdfast.Hold)
    with hf.lock("a") as first, hf.lock("b", renew=False, max_hold=60.0, grace=2) as second:
        assert_type((first, second), tuple[holdfast.Hold, holdfast.Hold])
    hf.lock("c", acks=1)
    hf.lock("c", acks="all")
    hf.lock()  # type: ignore[call-arg]
    hf.lock("c", lease="30")  # type: ignore[arg-type]
    hf.lock("c", lease=None)  # type: ignore[arg-type]
    hf.lock("c", 30)  # type: ignore[call-arg]
    hf.lock("c", ttl=30)  # type: ignore[call-arg]


def acquiring(lock: holdfast.Lock) -> int:
    assert_type(lock.acquire(), holdfast.Hold)
    assert_type(lock.acquire(None), holdfast.Hold)
    assert_type(lock.acquire(wait=timedelta(milliseconds=50)), holdfast.Hold)
    lock.acquire(wait="soon")  # type: ignore[arg-type]
    hold = lock.try_acquire()
    assert_type(hold, holdfast.Hold | None)
    hold.release()  # type: ignore[union-attr]
    if hold is None:
        return 0
    assert_type(hold, holdfast.Hold)
    return hold.fence


def holding(hold: holdfast.Hold) -> None:
    assert_type(hold.name, str)
    assert_type(hold.fence, int)
    assert_type(hold.owner, str)
    assert_type(hold.remaining(), float)
    assert_type(hold.is_lost(), bool)
    assert_type(hold.ensure(), None)
    assert_type(hold.extend(timedelta(minutes=1)), None)
    assert_type(hold.extend(60), None)
    assert_type(hold.release(), None)
    assert_type(hold.lost, holdfast.Lost)
    assert_type(hold.lost.is_set(), bool)
    assert_type(hold.lost.wait(), bool)
    assert_type(hold.lost.wait(timeout=1.5), bool)
    hold.fence = 7  # type: ignore[misc]
    hold.extend()  # type: ignore[call-arg]


def looking(lock: holdfast.Lock) -> None:
    info = lock.info()
    assert_type(info, holdfast.LockInfo)
    assert_type(info.name, str)
    assert_type(info.holder, str | None)
    assert_type(info.label, str)
    assert_type(info.expires_in, float | None)
    assert_type(info.fence, int)
    assert_type(info.waiting, int)
    assert_type(info.waiters, tuple[str, ...])
    assert_type(lock.force_release(), str | None)
    info.fence = 7  # type: ignore[misc]


def decorating(hf: holdfast.Client) -> None:
    @hf.lock("report", wait=0)
    def report(day: str, copies: int = 1) -> list[bytes]:
        return [day.encode()] * copies

    assert_type(report("monday"), list[bytes])
    assert_type(report(day="monday", copies=2), list[bytes])
    report()  # type: ignore[call-arg]
    report("monday", 2, 3)  # type: ignore[call-arg]
    report("monday", copies="2")  # type: ignore[arg-type]
    report(date="monday")  # type: ignore[call-arg]

    class Account:
        @hf.lock("account")
        def withdraw(self, amount: int) -> int:
            return -amount

    assert_type(Account().withdraw(5), int)
    Account().withdraw("5")  # type: ignore[arg-type]


def told(hold: holdfast.Hold) -> None:
    """An `on_lost` function may name the type that it is given."""


def losing(hf: holdfast.Client, anything: Callable[[object], int]) -> None:
    hf.lock("a", on_lost="raise")
    hf.lock("a", on_lost="warn")
    hf.lock("a", on_lost="ignore")
    hf.lock("a", on_lost=told)
    hf.lock("a", on_lost=anything)
    hf.lock("a", on_lost=lambda hold: print("lost", hold))
    hf.lock("a", on_lost="shout")  # type: ignore[arg-type]
    hf.lock("a", on_lost=lambda: None)  # type: ignore[arg-type, misc]


def failing(lock: holdfast.Lock) -> None:
    try:
        with lock:
            pass
    except holdfast.LockTimeout as error:
        assert_type(error.holder, str | None)
        assert_type(error.waited, float)
    except holdfast.Timeout as error:
        assert_type(error.waited, float)
    except holdfast.LockLost as error:
        assert_type(error.reason, str)
        assert_type(error.result, object)
    except holdfast.NodeError as error:
        assert_type(error.node, str)
        assert_type(error.sent, bool)
        assert_type(error.transient, bool)
    except holdfast.NotReplicated as error:
        assert_type((error.wanted, error.got), tuple[int, int])
    except holdfast.QuorumError as error:
        assert_type(error.votes, dict[str, str])
    except (holdfast.Unavailable, holdfast.UsageError, holdfast.ServerNotFound) as error:
        assert_type(error.name, str | None)
    except holdfast.HoldfastError as error:
        assert_type(error.name, str | None)
    except holdfast.LockLostWarning as warning:
        standard: UserWarning = warning
        print(standard)


def kinds(
    timeout: holdfast.LockTimeout, node: holdfast.NodeError, usage: holdfast.UsageError
) -> tuple[TimeoutError, ConnectionError, ValueError]:
    """The errors are also the standard ones that callers may already handle."""
    return timeout, node, usage


def observing(hf: holdfast.Client) -> None:
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
