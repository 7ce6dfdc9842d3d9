"""Cancellation at every await, Ctrl-C and a lost reply at every exchange, over three nodes.

Driven exhaustively: the scenario is run once for each point at which it can be interrupted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.drivers.blocking import ThreadSignal
from holdfast.drivers.fan_blocking import Fan
from holdfast.wire.link import Link
from holdfast.wire.pool import LinkPool
from tests.support.kit import Kit
from tests.support.quorum import Quorum
from tests.support.steps import CancelAt, InterruptAt

OWN_KIT = True
pytestmark = [pytest.mark.quorum(3), pytest.mark.timeout(180)]

Scenario = Callable[[holdfast.aio.Client, str], Coroutine[Any, Any, Any]]


def nothing_stays(quorum: Quorum, name: str, where: str, besides: str = "") -> None:
    """Soon no node has anything of the lock, nor ever had anything without a TTL."""
    ends = time.monotonic() + 3.0  # nodes that were not waited for are told beside the caller
    while True:
        left = [
            [key for key in keys if not (besides and key == name)] for keys in quorum.left(name)
        ]
        if left == [[], [], []]:
            break
        assert time.monotonic() < ends, f"{where}: {left}, owners {quorum.owners(name)}"
        time.sleep(0.005)
    assert quorum.without_ttl() == [], where


async def acquire(hf: holdfast.aio.Client, name: str) -> None:
    hold = await hf.lock(name).acquire()
    await hold.release()


async def try_acquire(hf: holdfast.aio.Client, name: str) -> None:
    hold = await hf.lock(name).try_acquire()
    if hold is not None:
        await hold.release()


async def in_a_block(hf: holdfast.aio.Client, name: str) -> None:
    async with hf.lock(name) as hold:
        await asyncio.sleep(0)
        await hold.extend(50)


async def wait_in_line(hf: holdfast.aio.Client, name: str) -> None:
    """Somebody else has it on two of the nodes, and ends by itself while we wait."""
    async with hf.lock(name, wait=5):
        pass


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("scenario", [acquire, try_acquire, in_a_block, wait_in_line])
def test_cancelled_at_every_await_no_node_keeps_anything(
    quorum: Quorum, name: str, scenario: Scenario, warm: bool
) -> None:
    """Votes, waits, body and release, cancelled at each suspension. 28, 32, B2, B22, T02, T22."""

    async def attempt(at: int, each: str) -> bool:
        async with holdfast.aio.connect(quorum.urls) as hf:
            if warm:
                await acquire(hf, f"{name}-warm")
            if scenario is wait_in_line:
                for raw in quorum.raws[:2]:
                    raw.set(each, "somebody else", px=60)
            steps = CancelAt(scenario(hf, each), at)

            async def body() -> None:
                await steps

            task = asyncio.create_task(body())
            cancelled = False
            try:
                await task
            except asyncio.CancelledError:
                cancelled = True
            await asyncio.to_thread(nothing_stays, quorum, each, f"cancelled at step {at}")
            hold = await hf.lock(each).acquire(wait=2)
            await hold.release()
            return cancelled

    at = 1
    while asyncio.run(attempt(at, f"{name}-{at}")):
        at += 1
        assert at < 500
    assert at - 1 >= 2, "the scenario was not interrupted where it suspends"


# ── the blocking face: Ctrl-C ──────────────────────────────────────────────────────────────────


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, plan: InterruptAt) -> Iterator[None]:
    """Every way in which a fan-out touches the world may be interrupted."""
    with monkeypatch.context() as patch:
        for owner, verb in [
            (Link, "send"), (Link, "write"), (Link, "read"), (Link, "read_ready"),
            (Link, "__init__"), (LinkPool, "ready"), (LinkPool, "give"), (LinkPool, "parked"),
            (ThreadSignal, "take"), (Fan, "_send"), (Fan, "_admit"), (Fan, "_answer"),
        ]:  # fmt: skip
            patch.setattr(owner, verb, plan.wrap(getattr(owner, verb)))
        yield


@pytest.mark.filterwarnings("ignore:.*dropped without release:ResourceWarning")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("waits", [False, True], ids=["free", "held"])
def test_ctrl_c_at_every_exchange_leaves_nothing_on_any_node(
    quorum: Quorum,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
    warm: bool,
    waits: bool,
) -> None:
    """KeyboardInterrupt before and after each send, read, connect, vote and wait. Case 31, T02."""
    at, interruptions = 1, 0
    while True:
        each = f"{name}-{at}"
        with holdfast.connect(quorum.urls) as hf:
            if warm:
                for _ in range(3):  # until it is connected to every node
                    hf.lock(f"{name}-warm").acquire().release()
            if waits:
                for raw in quorum.raws[:2]:
                    raw.set(each, "somebody else", px=60)
            plan = InterruptAt(at, after)
            with interrupted(monkeypatch, plan):
                try:
                    with hf.lock(each, wait=5):
                        pass
                except KeyboardInterrupt:
                    interruptions += 1
            nothing_stays(quorum, each, f"interrupted {'after' if after else 'before'} call {at}")
        if plan.calls < at:
            break
        at += 1
        assert at < 500
    assert interruptions >= 3


# ── replies that are lost ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "nodes", [(0,), (0, 1), (0, 1, 2)], ids=["one-node", "two-nodes", "all-nodes"]
)
async def test_a_reply_lost_at_each_exchange_leaves_nothing_behind(
    kit: Kit, quorum: Quorum, nodes: tuple[int, ...]
) -> None:
    """Connect, vote, extend, release: the k-th reply of these nodes lost, for every k. 52, B5-B7."""
    quorum.through_proxies()
    at = 0
    while True:
        at += 1
        name = f"{kit.name}-{at}"
        hf = kit.connect(quorum.urls, timeout=1)
        for number in nodes:
            quorum.proxies[number].drop_next_reply(at)
        hold = await hf.lock(name).acquire(wait=5)
        await hold.extend(50)
        assert hold.remaining() > 0
        await hold.release()
        await kit.eventually(lambda name=name: quorum.left(name) == [[], [], []])  # type: ignore[misc]
        reached = any(quorum.proxies[number].dropped_a_reply for number in nodes)
        for proxy in quorum.proxies:
            proxy.heal()
        await hf.close()
        if not reached:
            break
        assert at < 50
    assert at > 4
    assert quorum.without_ttl() == []
