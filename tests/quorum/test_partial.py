"""Some of the nodes are of no use, in every way in which nodes can be."""

from __future__ import annotations

import re
import time

import pytest

import holdfast
from holdfast import events
from tests.support.kit import Kit
from tests.support.quorum import Quorum
from tests.support.trouble import TROUBLES

OWN_KIT = True
TIMEOUT = 0.4


def hurt(quorum: Quorum, count: int, how: str) -> None:
    """Do it to the first `count` nodes."""
    for number in range(count):
        TROUBLES[how][0](quorum.nodes[number], quorum.proxies[number])


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("how", TROUBLES)
@pytest.mark.parametrize(
    ("count", "bad"),
    [
        pytest.param(3, 1, marks=pytest.mark.quorum(3, timeout=TIMEOUT, debug=True)),
        pytest.param(5, 2, marks=pytest.mark.quorum(5, timeout=TIMEOUT, debug=True)),
    ],
)
async def test_a_minority_that_is_of_no_use_costs_nothing_but_its_votes(
    kit: Kit, quorum: Quorum, count: int, bad: int, how: str, warm: bool
) -> None:
    """Granted within the timeout of a node, renewed, taken for others, released. 50, B18, B19, T58."""
    quorum.through_proxies()
    hf, other = kit.connect(quorum.urls), kit.connect(quorum.urls)
    if warm:
        await kit.warm(hf, kit.name)
    hurt(quorum, bad, how)
    began = time.monotonic()
    hold = await hf.lock(kit.name, lease=1.2, on_lost="ignore").acquire(wait=3)
    took = time.monotonic() - began
    assert took < TIMEOUT + 0.4, took
    good = range(bad, count)
    assert quorum.owners(kit.name, *good).count(hold.owner) >= count // 2 + 1
    assert await other.lock(kit.name).try_acquire() is None
    await kit.sleep(1.5)
    hold.ensure()  # it was renewed meanwhile
    began = time.monotonic()
    await hold.release()
    assert time.monotonic() - began < TIMEOUT + 0.4
    await kit.eventually(lambda: quorum.owners(kit.name, *good) == [None] * (count - bad))
    async with other.lock(kit.name, wait=2):
        pass


@pytest.mark.parametrize("how", TROUBLES)
@pytest.mark.quorum(3, timeout=TIMEOUT, debug=True)
async def test_a_majority_that_is_of_no_use_is_named_vote_by_vote(
    kit: Kit, quorum: Quorum, how: str
) -> None:
    """QuorumError within the time that was given, with what each node said; not a timeout. 5, 54."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls)
    await kit.warm(hf, kit.name)
    hurt(quorum, 2, how)
    for wait in (0, 0.3):
        began = time.monotonic()
        with pytest.raises(holdfast.QuorumError) as caught:
            await hf.lock(kit.name).acquire(wait=wait)
        took = time.monotonic() - began
        assert took < wait + 3 * TIMEOUT + 0.3, took
        votes = caught.value.votes
        assert list(votes) == [f"127.0.0.1:{proxy.port}" for proxy in quorum.proxies]
        for node in list(votes)[:2]:
            assert re.search(TROUBLES[how][1], votes[node]), votes
        assert not isinstance(caught.value, holdfast.LockTimeout)
        assert "2 of 3 nodes cannot vote, and 2 are needed" in str(caught.value)
        assert all(node in str(caught.value) for node in votes)
        assert caught.value.name == kit.name
    assert quorum.owners(kit.name, 2) == [None], "a vote was kept"


@pytest.mark.quorum(5, timeout=TIMEOUT)
async def test_three_of_five_gone_is_not_taken_and_taken_is_not_gone(
    kit: Kit, quorum: Quorum
) -> None:
    """The two refusals differ in type, and the lock comes back with the nodes. Cases 5, 27, 54."""
    hold = await kit.lock().acquire()
    with pytest.raises(holdfast.LockTimeout) as taken:
        await kit.lock().acquire(wait=0.1)
    assert taken.value.holder == hold.owner
    await hold.release()
    for number in (0, 2, 4):
        quorum.nodes[number].pause()
    with pytest.raises(holdfast.QuorumError, match="3 of 5 nodes cannot vote") as gone:
        await kit.lock().acquire(wait=0.2)
    assert [vote == "granted" for vote in gone.value.votes.values()].count(True) == 2
    assert gone.value.transient
    assert not isinstance(gone.value, TimeoutError), "callers tell the two apart by type alone"
    quorum.nodes[0].resume()
    hold = await kit.lock().acquire(wait=8)
    await hold.release()
    await kit.eventually(lambda: quorum.owners(kit.name, 0, 1, 3) == [None] * 3)


@pytest.mark.quorum(3, timeout=TIMEOUT)
async def test_an_outage_that_ends_within_the_wait_is_not_seen(kit: Kit, quorum: Quorum) -> None:
    """The same acquire goes on asking, under the same owner id, and is granted. Cases 44, 52."""
    for number in (0, 1):
        quorum.nodes[number].pause()
    waiting = kit.spawn(kit.lock().acquire(wait=10))
    await kit.sleep(0.8)
    assert not waiting.done()
    for number in (0, 1):
        quorum.nodes[number].resume()
    hold = await waiting.wait()
    await kit.eventually(lambda: quorum.owners(kit.name).count(hold.owner) >= 2)
    await hold.release()
    await kit.eventually(lambda: quorum.left(kit.name) == [[]] * 3)


@pytest.mark.quorum(5, timeout=TIMEOUT)
async def test_extending_needs_a_majority_and_a_minority_does_no_harm(
    kit: Kit, quorum: Quorum
) -> None:
    """Two silent nodes: extended. Three: Unavailable, and the hold keeps what it had. Case 55."""
    hold = await kit.lock(lease=20, renew=False, on_lost="ignore").acquire()
    await kit.held_everywhere(hold)
    for number in (0, 1):
        quorum.nodes[number].pause()
    await hold.extend(30)
    assert 25 < hold.remaining() <= 30
    quorum.nodes[2].pause()
    before = hold.remaining()
    with pytest.raises(holdfast.QuorumError, match="too few nodes vouch") as caught:
        await hold.extend(50)
    assert [vote == "has the lock" for vote in caught.value.votes.values()].count(True) == 2
    assert before - 3 < hold.remaining() <= before
    hold.ensure()
    assert quorum.owners(kit.name, 3, 4) == [hold.owner] * 2, "a failed extend cleaned up"
    for number in (0, 1, 2):
        quorum.nodes[number].resume()
    await kit.eventually(lambda: quorum.owners(kit.name) == [hold.owner] * 5)
    await hold.release()


@pytest.mark.quorum(3, timeout=TIMEOUT)
async def test_renewals_without_a_majority_end_in_a_loss_at_the_deadline(
    kit: Kit, quorum: Quorum
) -> None:
    """Said when the lease ends by this machine's clock, neither earlier nor later. 41, 55, T11."""
    failed: list[events.Event] = []
    getattr(kit.hf, "blocking", kit.hf).subscribe(failed.append, [events.RenewalFailed])
    began = time.monotonic()
    hold = await kit.lock(lease=1.5, on_lost="ignore").acquire()
    for number in (0, 1):
        quorum.nodes[number].pause()
    await kit.sleep(0.9)
    hold.ensure()
    assert await hold.lost.wait(5)
    assert time.monotonic() - began < 3.2  # a renewal may have succeeded before the pause
    assert failed
    assert quorum.owners(kit.name, 2)[0] in {hold.owner, None}
    with pytest.raises(holdfast.LockLost, match="expired"):
        hold.ensure()
    for number in (0, 1):
        quorum.nodes[number].resume()
    await kit.end(hold)


@pytest.mark.quorum(3, timeout=TIMEOUT)
async def test_a_release_reaches_a_node_that_is_passed_over(kit: Kit, quorum: Quorum) -> None:
    """It had granted, then fell silent, and nobody asks it: the release waits there for it. 36, B1."""
    hold = await kit.lock(kit.name, lease=30, renew=False).acquire()
    await kit.held_everywhere(hold)
    quorum.nodes[2].pause()
    for number in range(4):  # the breaker opens
        await (await kit.lock(f"{kit.name}-{number}").acquire()).release()
        await kit.sleep(TIMEOUT / 2)
    began = time.monotonic()
    await hold.release()
    assert time.monotonic() - began < TIMEOUT / 2
    assert quorum.owners(kit.name, 0, 1) == [None, None]
    await kit.sleep(0.05)
    quorum.nodes[2].resume()
    await kit.eventually(lambda: quorum.owners(kit.name) == [None] * 3, 3)


# ── an even number of nodes ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "count", [pytest.param(count, marks=pytest.mark.quorum(count)) for count in (2, 4)]
)
async def test_an_even_number_and_a_tie_fails_and_is_retried(
    kit: Kit, quorum: Quorum, count: int
) -> None:
    """Half of the nodes say yes, half say no: neither a grant nor a hang. Case B25."""
    half = count // 2
    for raw in quorum.raws[:half]:
        raw.set(kit.name, "somebody else", px=900)
    began = time.monotonic()
    assert await kit.lock().try_acquire() is None
    with pytest.raises(holdfast.LockTimeout) as caught:
        await kit.lock().acquire(wait=0.15)
    assert caught.value.holder == "somebody else"
    assert time.monotonic() - began < 0.8
    rest = range(half, count)
    await kit.eventually(lambda: quorum.owners(kit.name, *rest) == [None] * half)
    hold = await kit.lock().acquire(wait=10)
    assert time.monotonic() - began < 2.5
    await hold.release()


@pytest.mark.quorum(4)
async def test_contenders_over_four_nodes_all_get_their_turn(kit: Kit, quorum: Quorum) -> None:
    """Ties are likely with an even number; random delays end them. Cases B25, T40."""
    turns: list[int] = []
    inside = 0

    async def contender(number: int) -> None:
        nonlocal inside
        for _ in range(3):
            async with kit.lock(wait=30, lease=5):
                inside += 1
                assert inside == 1
                turns.append(number)
                await kit.sleep(0.002)
                inside -= 1

    flows = [kit.spawn(contender(number)) for number in range(6)]
    for flow in flows:
        await flow.wait()
    assert len(turns) == 18


@pytest.mark.quorum(3, timeout=2)
async def test_a_silent_node_never_holds_up_those_who_write_to_it(kit: Kit, quorum: Quorum) -> None:
    """It takes what is sent until its buffers are full: the others are asked all the same. T58."""
    await kit.warm(kit.hf, kit.name)
    quorum.nodes[0].pause()
    lock = kit.lock()
    ends = time.monotonic() + 3.0
    worst = 0.0
    pairs = 0
    while time.monotonic() < ends:
        began = time.monotonic()
        await (await lock.acquire(wait=0)).release()
        worst = max(worst, time.monotonic() - began)
        pairs += 1
    assert worst < 1.0, worst
    assert pairs > 200
    quorum.nodes[0].resume()
    await kit.eventually(lambda: quorum.owners(kit.name) == [None] * 3)
