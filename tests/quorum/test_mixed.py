"""Fleets of several libraries: whoever writes the usual Redlock key excludes us, and we exclude them.

The stranger here does what node-redlock and redsync do: `SET name value NX PX ms` on every node, a
majority decides, and compare-and-delete on every node afterwards.
"""

from __future__ import annotations

import secrets
import threading
import time

import pytest
import redis

import holdfast
from tests.support.kit import Kit
from tests.support.quorum import Quorum

OWN_KIT = True

DELETE_IF_MINE = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
)


class Stranger:
    """Redlock as the page describes it."""

    def __init__(self, nodes: list[redis.Redis], name: str) -> None:
        self.nodes = nodes
        self.name = name
        self.value = ""

    def acquire(self, lease_ms: int = 10_000) -> bool:
        """One attempt; what a lost one gained is given back."""
        self.value = secrets.token_hex(20)
        votes = sum(
            bool(node.set(self.name, self.value, nx=True, px=lease_ms)) for node in self.nodes
        )
        if votes >= len(self.nodes) // 2 + 1:
            return True
        self.release()
        return False

    def release(self) -> int:
        """On how many nodes it was ours."""
        return sum(bool(node.eval(DELETE_IF_MINE, 1, self.name, self.value)) for node in self.nodes)


@pytest.fixture
def stranger(quorum: Quorum, name: str) -> Stranger:
    return Stranger(quorum.raws, name)


@pytest.mark.quorum(3)
async def test_a_stranger_excludes_us_and_we_hear_who_it_is(
    kit: Kit, quorum: Quorum, stranger: Stranger
) -> None:
    """Taken, not unreachable; granted when it has released, though it announces nothing. T28."""
    assert stranger.acquire()
    assert await kit.lock().try_acquire() is None
    with pytest.raises(holdfast.LockTimeout) as caught:
        await kit.lock().acquire(wait=0.1)
    assert caught.value.holder == stranger.value
    assert quorum.owners(kit.name) == [stranger.value] * 3, "we touched its keys"
    assert (await kit.lock().info()).holder == stranger.value
    waiting = kit.spawn(kit.lock().acquire(wait=5))
    await kit.sleep(0.1)
    began = time.monotonic()
    assert stranger.release() == 3
    hold = await waiting.wait()
    assert time.monotonic() - began < 1.2
    await hold.release()


@pytest.mark.quorum(3)
async def test_we_exclude_a_stranger_until_we_release(
    kit: Kit, quorum: Quorum, stranger: Stranger
) -> None:
    """Its SET NX finds our key on every node; its clean-up compares, and takes nothing."""
    hold = await kit.lock().acquire()
    await kit.held_everywhere(hold)
    for _ in range(5):
        assert not stranger.acquire()
    assert quorum.owners(kit.name) == [hold.owner] * 3
    hold.ensure()
    await hold.extend(20)
    await hold.release()
    assert stranger.acquire()
    stranger.release()


@pytest.mark.quorum(3)
async def test_a_stranger_that_crashed_costs_its_lease(
    kit: Kit, quorum: Quorum, stranger: Stranger
) -> None:
    """Nobody releases and nobody announces: we look when its keys end. Cases 18, T27."""
    assert stranger.acquire(lease_ms=700)
    began = time.monotonic()
    hold = await kit.lock().acquire(wait=5)
    assert 0.6 < time.monotonic() - began < 1.5
    await hold.release()


@pytest.mark.quorum(5)
async def test_in_a_mixed_fleet_one_at_a_time_is_inside(kit: Kit, quorum: Quorum) -> None:
    """Threads of the stranger and flows of ours, under contention: never two inside. Case 24."""
    inside: list[str] = []
    overlaps: list[tuple[str, ...]] = []
    turns = {"stranger": 0, "holdfast": 0}
    ends = time.monotonic() + 3.0
    guard = threading.Lock()

    def enter(who: str) -> None:
        with guard:
            inside.append(who)
            turns[who] += 1
            if len(inside) > 1:
                overlaps.append(tuple(inside))

    def leave(who: str) -> None:
        with guard:
            inside.remove(who)

    def strange() -> None:
        nodes = [redis.Redis(port=node.port, retry=None) for node in quorum.nodes]
        try:
            while time.monotonic() < ends:
                other = Stranger(nodes, kit.name)
                if other.acquire():
                    enter("stranger")
                    time.sleep(0.002)
                    leave("stranger")
                    other.release()
                time.sleep(0.003)
        finally:
            for node in nodes:
                node.close()

    async def ours() -> None:
        while time.monotonic() < ends:
            try:
                async with kit.lock(wait=3, lease=5):
                    enter("holdfast")
                    await kit.sleep(0.002)
                    leave("holdfast")
            except holdfast.LockTimeout:
                pass
            await kit.sleep(0.001)

    threads = [threading.Thread(target=strange) for _ in range(2)]
    for thread in threads:
        thread.start()
    flows = [kit.spawn(ours()) for _ in range(3)]
    for flow in flows:
        await flow.wait()
    for thread in threads:
        thread.join(10)
    assert overlaps == []
    assert min(turns.values()) > 3, turns
    await kit.eventually(lambda: quorum.left(kit.name) == [[]] * 5)
