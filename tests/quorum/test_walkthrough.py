"""The scenarios that everybody quotes against Redlock, on real servers, with their clocks moved.

What a quorum cannot prevent, it can make harmless: fences grow with each grant, and a resource that
checks them refuses whoever believes wrongly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab import clock

import holdfast
from tests.support.kit import Kit
from tests.support.ledger import Ledger
from tests.support.quorum import Quorum

OWN_KIT = True
ROOT = Path(__file__).parents[2]
moved_clocks = pytest.mark.skipif(clock.reason() is not None, reason=str(clock.reason()))


@moved_clocks
@pytest.mark.quorum(5, clocks=True)
async def test_a_clock_that_jumps_gives_two_holders_and_fences_tell_them_apart(
    kit: Kit, quorum: Quorum
) -> None:
    """A, B, C hold for client 1; C's clock jumps; C, D, E hold for client 2. Cases 61, 63, T58."""
    first = kit.connect(quorum.side(0, 1, 2))
    second = kit.connect(quorum.side(2, 3, 4))
    ledger = Ledger(":memory:")
    one = await first.lock(kit.name, lease=20, on_lost="ignore").acquire(wait=2)
    assert await second.lock(kit.name).try_acquire() is None
    assert ledger.write("client 1", one.fence)

    quorum.clocks[2].jump(30)
    two = await second.lock(kit.name, lease=20).acquire(wait=2)

    # Both believe, and each could show its majority.
    assert one.remaining() > 0
    assert two.remaining() > 0
    assert not one.is_lost()
    assert quorum.owners(kit.name) == [one.owner, one.owner, two.owner, two.owner, two.owner]
    # The order of the fences is the order of the grants, and the resource goes by it.
    assert two.fence > one.fence
    assert ledger.write("client 2", two.fence)
    assert not ledger.write("client 1", one.fence)
    assert ledger.last() == "client 2"
    # Asked, C says that it is somebody else's: client 1 learns of it with its next renewal.
    with pytest.raises(holdfast.LockLost, match=f"taken by {two.owner}"):
        await one.extend(20)
    assert quorum.owners(kit.name) == [one.owner, one.owner, two.owner, two.owner, two.owner]
    await two.release()
    await kit.end(one)


@moved_clocks
@pytest.mark.quorum(5, clocks=True)
async def test_a_clock_that_goes_back_prolongs_and_takes_nothing(kit: Kit, quorum: Quorum) -> None:
    """A step back on two nodes: their keys live longer than the lease, the others decide. Case 63."""
    lock = kit.lock(lease=1, renew=False, on_lost="ignore")
    hold = await lock.acquire()
    await kit.held_everywhere(hold)
    for number in (0, 1):
        quorum.clocks[number].jump(-3600)
    began = time.monotonic()
    after = await kit.lock().acquire(wait=5)
    assert time.monotonic() - began < 3
    assert after.fence > hold.fence
    assert hold.is_lost()
    await after.release()


@moved_clocks
@pytest.mark.quorum(3, clocks=True)
async def test_a_clock_that_runs_fast_by_less_than_the_drift_does_no_harm(
    kit: Kit, quorum: Quorum
) -> None:
    """Drift of 1 % is allowed for: the hold says that it is over before any node does. Case 53."""
    for each in quorum.clocks:
        each.run(1.009)
    hold = await kit.lock(lease=2, renew=False, on_lost="ignore").acquire()
    looks = 0
    while True:
        vouching = quorum.owners(kit.name).count(hold.owner)
        if hold.is_lost():
            break
        assert vouching >= 2, "it believed for longer than its nodes vouched"
        looks += 1
    assert looks > 50


@pytest.mark.quorum(5, guard=False)
async def test_without_a_guard_a_node_that_forgot_gives_two_holders(
    kit: Kit, quorum: Quorum
) -> None:
    """C restarts empty and votes again at once: two believe; the fences are in order. Case 61."""
    first = kit.connect(quorum.side(0, 1, 2))
    second = kit.connect(quorum.side(2, 3, 4))
    one = await first.lock(kit.name, lease=20, on_lost="ignore").acquire(wait=2)
    quorum.nodes[2].restart()
    two = await second.lock(kit.name).acquire(wait=5)
    assert one.remaining() > 0
    assert two.remaining() > 0
    assert two.fence > one.fence
    ledger = Ledger(":memory:")
    assert ledger.write("client 2", two.fence)
    assert not ledger.write("client 1", one.fence)
    await two.release()
    await kit.end(one)


@pytest.mark.quorum(5, max_lease=2)
async def test_with_the_guard_a_node_that_forgot_gives_one_holder(kit: Kit, quorum: Quorum) -> None:
    """C restarts empty and grants nothing for the longest lease: by then client 1 is over. 61, T58."""
    first = kit.connect(quorum.side(0, 1, 2))
    second = kit.connect(quorum.side(2, 3, 4))
    one = await first.lock(kit.name, lease=2, on_lost="ignore").acquire(wait=2)
    quorum.nodes[2].restart()
    with pytest.raises(holdfast.QuorumError, match=r"grants nothing for .* s more") as caught:
        await second.lock(kit.name, lease=2).acquire(wait=0.3)
    assert caught.value.transient
    assert not one.is_lost()
    assert quorum.owners(kit.name)[2] is None
    two = await second.lock(kit.name, lease=2).acquire(wait=10)
    assert one.is_lost(), "two holders"
    assert two.fence > one.fence
    await two.release()


@pytest.mark.quorum(5)
async def test_a_client_frozen_beyond_its_lease_is_refused_by_the_resource(
    kit: Kit, quorum: Quorum, tmp_path: Path
) -> None:
    """SIGSTOP past the lease, somebody else works, SIGCONT: the late write bears an old fence."""
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.frozen", kit.colour, kit.name, path, *quorum.urls],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        fence = int(process.stdout.readline())
        assert ledger.write("frozen, in time", fence)
        os.kill(process.pid, signal.SIGSTOP)
        hold = await kit.lock().acquire(wait=5)
        assert hold.fence > fence
        assert ledger.write("the next", hold.fence)
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate("go on\n", timeout=10)
    finally:
        process.kill()
        process.wait()
    assert out.split() == ["True", "False"]  # it knows that it lost the lock; the write was refused
    assert ledger.last() == "the next"
    await hold.release()


@pytest.mark.quorum(5)
async def test_replies_lost_on_two_nodes_are_votes_all_the_same(kit: Kit, quorum: Quorum) -> None:
    """A majority answered; the two nodes whose replies were lost hold the key as well. Case 52."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls)
    await kit.warm(hf, kit.name)
    for number in (0, 3):
        quorum.proxies[number].drop_next_reply()
    hold = await hf.lock(kit.name, lease=20).acquire(wait=2)
    await kit.eventually(lambda: quorum.owners(kit.name).count(hold.owner) == 5)
    assert await kit.lock().try_acquire() is None
    hold.ensure()
    await hold.release()
    await kit.eventually(lambda: quorum.left(kit.name) == [[]] * 5)


@pytest.mark.quorum(5)
async def test_replies_lost_on_a_majority_are_found_again(kit: Kit, quorum: Quorum) -> None:
    """Three replies are lost: asked again, the nodes know the owner. It never blocks itself. 52."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls)
    await kit.warm(hf, kit.name)
    for number in (0, 2, 4):
        quorum.proxies[number].drop_next_reply()
    began = time.monotonic()
    hold = await hf.lock(kit.name, lease=20).acquire(wait=5)
    assert time.monotonic() - began < 3
    assert quorum.owners(kit.name).count(hold.owner) >= 3
    await hold.release()
    await kit.eventually(lambda: quorum.left(kit.name) == [[]] * 5)
