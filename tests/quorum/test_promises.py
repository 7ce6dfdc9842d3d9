"""The three things that Redlock promises, each shown as such on five real servers."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast
from tests.support.kit import Kit
from tests.support.quorum import Quorum

OWN_KIT = True
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Turn:
    """For how long somebody believed to hold the lock, and under which fence."""

    since: float
    until: float
    fence: int


def overlaps(turns: list[Turn]) -> list[tuple[Turn, Turn]]:
    """Those that believed at the same time."""
    in_order = sorted(turns, key=lambda turn: turn.since)
    return [(a, b) for a, b in itertools.pairwise(in_order) if b.since < a.until]


def out_of_order(turns: list[Turn]) -> list[tuple[Turn, Turn]]:
    """Those that came later with a fence that is not larger."""
    in_order = sorted(turns, key=lambda turn: turn.since)
    return [(a, b) for a, b in itertools.pairwise(in_order) if b.fence <= a.fence]


def test_the_checkers_see_what_they_look_for() -> None:
    """A check that cannot fail shows nothing."""
    first, second = Turn(0.0, 2.0, 10), Turn(1.0, 3.0, 9)
    assert overlaps([second, first]) == [(first, second)]
    assert out_of_order([second, first]) == [(first, second)]
    after = Turn(2.0, 3.0, 11)
    assert overlaps([after, first]) == out_of_order([after, first]) == []


class Havoc:
    """Does something to two of the five nodes at a time, at random, until told to stop."""

    def __init__(self, quorum: Quorum, seed: int) -> None:
        self._quorum = quorum
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done = dict.fromkeys(("restarted empty", "silent", "cut off", "reply lost"), 0)

    def __enter__(self) -> Havoc:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._random.uniform(0.02, 0.15)):
            victims = self._random.sample(range(len(self._quorum.nodes)), 2)
            what = self._random.choice(list(self.done))
            self.done[what] += 1
            for number in victims:
                self._hurt(number, what)
            self._over.wait(self._random.uniform(0.05, 0.6))
            for number in victims:
                self._heal(number, what)

    def _hurt(self, number: int, what: str) -> None:
        node, proxy = self._quorum.nodes[number], self._quorum.proxies[number]
        if what == "restarted empty":
            node.restart()
        elif what == "silent":
            node.pause()
        elif what == "cut off":
            proxy.refuse()
            proxy.reset()
        else:
            proxy.drop_next_reply()

    def _heal(self, number: int, what: str) -> None:
        if what == "silent":
            self._quorum.nodes[number].resume()
        elif what == "cut off":
            self._quorum.proxies[number].accept()


@pytest.mark.slow
@pytest.mark.quorum(5, max_lease=0.6, timeout=0.2)
async def test_mutual_exclusion(kit: Kit, quorum: Quorum) -> None:
    """Nodes restart empty, fall silent, are cut off: never two that believe. 24, 61, T58."""
    quorum.through_proxies()
    turns: list[Turn] = []
    ends = time.monotonic() + 8.0
    unreachable = 0

    async def contender(number: int) -> None:
        nonlocal unreachable
        hf = kit.connect(quorum.urls)
        lock = hf.lock(kit.name, lease=0.6, on_lost="ignore")
        rng = random.Random(number)
        while time.monotonic() < ends:
            try:
                hold = await lock.acquire(wait=2)
            except holdfast.LockTimeout:
                continue
            except holdfast.QuorumError:
                unreachable += 1
                continue
            since = until = time.monotonic()
            leaves = since + rng.choice((0.001, 0.01, 0.3))
            while (now := time.monotonic()) < leaves and hold.remaining() > 0:
                until = now  # it believed then: what is lost does not come back
                await kit.sleep(0.002)
            turns.append(Turn(since, until, hold.fence))
            await kit.end(hold)

    with Havoc(quorum, seed=11 if kit.colour == "asyncio" else 12) as havoc:
        flows = [kit.spawn(contender(number)) for number in range(5)]
        for flow in flows:
            await flow.wait()
    assert overlaps(turns) == []
    assert out_of_order(turns) == []
    assert len(turns) > 20, (len(turns), unreachable, havoc.done)
    assert sum(havoc.done.values()) > 8, havoc.done


HOLDER = """
import sys, time, holdfast
with holdfast.connect(sys.argv[2:]) as hf:
    hold = hf.lock(sys.argv[1], lease=0.8).acquire()
    print(hold.owner, flush=True)
    time.sleep(60)
"""
WAITER = """
import sys, holdfast
with holdfast.connect(sys.argv[2:]) as hf:
    print("waits", flush=True)
    hf.lock(sys.argv[1], lease=0.8).acquire()
"""


def _process(code: str, name: str, urls: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, name, *urls], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.quorum(5)
async def test_freedom_from_deadlock(kit: Kit, quorum: Quorum) -> None:
    """The holder and a waiter are killed: whoever is left has the lock after one lease. 13, 18, T38."""
    holder = _process(HOLDER, kit.name, quorum.urls)
    waiter = _process(WAITER, kit.name, quorum.urls)
    try:
        waiting = kit.spawn(kit.lock().acquire(wait=10))
        await kit.sleep(0.3)
        assert not waiting.done()
        waiter.kill()
        holder.kill()
        began = time.monotonic()
        hold = await waiting.wait()
        assert time.monotonic() - began < 0.8 + 1.0
        await hold.release()
        await kit.eventually(lambda: not any(raw.exists(kit.name) for raw in quorum.raws))
    finally:
        for process in (holder, waiter):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.mark.quorum(5)
async def test_votes_that_split_are_held_again_until_somebody_wins(
    kit: Kit, quorum: Quorum
) -> None:
    """All begin at the same instant, again and again: each round ends with a winner each. T40."""
    clients = [kit.connect(quorum.urls) for _ in range(5)]
    for hf in clients:
        await kit.warm(hf, f"{kit.name}-warm")

    async def turn(hf: object, name: str) -> None:
        async with hf.lock(name, wait=10):  # type: ignore[attr-defined]
            pass

    for attempt in range(10):
        began = time.monotonic()
        flows = [kit.spawn(turn(hf, f"{kit.name}-{attempt}")) for hf in clients]
        for flow in flows:
            await flow.wait()
        assert time.monotonic() - began < 5


@pytest.mark.quorum(5, timeout=0.3)
async def test_fault_tolerance(kit: Kit, quorum: Quorum) -> None:
    """Any two of the five say nothing: granted, renewed, taken for others, released. Case 50."""
    other = kit.connect(quorum.urls)
    for pair in itertools.combinations(range(5), 2):
        for number in pair:
            quorum.nodes[number].pause()
        hold = await kit.lock(f"{kit.name}-{pair}", lease=0.6, on_lost="ignore").acquire(wait=3)
        assert await other.lock(f"{kit.name}-{pair}").try_acquire() is None
        await kit.sleep(0.7)
        hold.ensure()
        await hold.release()
        again = await other.lock(f"{kit.name}-{pair}").acquire(wait=3)
        await again.release()
        for number in pair:
            quorum.nodes[number].resume()


@pytest.mark.quorum(3)
async def test_validity_is_counted_from_the_vote_that_won(kit: Kit, quorum: Quorum) -> None:
    """Lost votes before it take nothing from it, and it is never more than the lease. 51, 53."""
    for raw in quorum.raws:
        raw.set(kit.name, "somebody else", px=900)
    hold = await kit.lock(lease=1, renew=False, on_lost="ignore").acquire(wait=5)
    left = hold.remaining()
    assert 0.7 < left <= 0.988, left
    await kit.sleep(1.0)
    assert hold.remaining() == 0.0
    await kit.end(hold)


@pytest.mark.quorum(3)
async def test_time_that_the_vote_took_is_taken_off(kit: Kit, quorum: Quorum) -> None:
    """A vote of 0.3 s leaves that much less; one that ate the validity is no grant. 51, 53."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls, timeout=2)
    await kit.warm(hf, kit.name)
    for proxy in quorum.proxies:
        proxy.delay(0.3, "down")
    hold = await hf.lock(kit.name, lease=10, renew=False).acquire(wait=3)
    assert 9.0 < hold.remaining() < 9.898 - 0.3
    await hold.release()
    with pytest.raises(holdfast.QuorumError):  # 15 ms are all that a node is given here
        await hf.lock(kit.name, lease=0.3).acquire(wait=0)
    await kit.eventually(lambda: quorum.left(kit.name) == [[], [], []])


@pytest.mark.quorum(3)
async def test_keys_that_are_missing_or_strange_on_a_node_do_no_harm(
    kit: Kit, quorum: Quorum
) -> None:
    """Helpers deleted, or of another type, on one node: its vote is lost, nothing else is. T41."""
    from holdfast.core.keys import aux

    hold = await kit.lock(lease=20).acquire()
    await kit.held_everywhere(hold)
    quorum.raws[0].delete(aux(kit.name, "fence"), aux(kit.name, "queue"))
    await hold.extend(30)
    await hold.release()
    await kit.eventually(lambda: quorum.left(kit.name) == [[], [], []])  # told everywhere
    quorum.raws[0].delete(aux(kit.name, "fence"))
    quorum.raws[0].hset(aux(kit.name, "fence"), "what", "is this")
    quorum.raws[0].pexpire(aux(kit.name, "fence"), 60_000)
    hold = await kit.lock().acquire(wait=2)
    assert (await kit.lock().try_acquire()) is None
    await hold.release()
    quorum.raws[1].set(aux(kit.name, "fence"), "no number", px=60_000)
    after = await kit.lock().acquire(wait=2)
    assert after.fence > hold.fence
    await after.release()


@pytest.mark.quorum(3)
async def test_waiters_of_a_lock_that_nobody_releases_ask_rarely(kit: Kit, quorum: Quorum) -> None:
    """60 waiters, the first of them dead: their looks are bounded together, on every node. T42."""
    hold = await kit.lock(lease=30).acquire()
    await kit.held_everywhere(hold)
    hf = kit.connect(quorum.urls)
    flows = [kit.spawn(hf.lock(kit.name).acquire(wait=6)) for _ in range(60)]
    await kit.sleep(2.0)
    before = [raw.info("commandstats")["cmdstat_evalsha"]["calls"] for raw in quorum.raws]
    await kit.sleep(2.0)
    after = [raw.info("commandstats")["cmdstat_evalsha"]["calls"] for raw in quorum.raws]
    looks = [b - a for a, b in zip(before, after, strict=True)]
    assert max(looks) < 2 * 60, looks
    await hold.release()
    for flow in flows:
        try:
            held = await flow.wait()
        except holdfast.LockTimeout:
            continue
        await held.release()


@pytest.mark.quorum(3)
async def test_without_the_right_to_info_a_node_says_so(kit: Kit, quorum: Quorum) -> None:
    """The guard needs the run id: refused in words that name the node; guard=False goes on. T55."""
    for node in quorum.nodes:
        node.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
    urls = [node.url.replace("redis://", "redis://app:secret@") for node in quorum.nodes]
    with pytest.raises(holdfast.QuorumError, match="refuses the user") as caught:
        await kit.connect(urls).lock(kit.name).acquire(wait=5)
    assert not caught.value.transient
    assert len(caught.value.votes) == 3
    hold = await kit.connect(urls, guard=False).lock(kit.name).acquire(wait=2)
    await hold.release()
