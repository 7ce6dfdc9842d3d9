"""Nodes that hear late: a grant that comes after its release, a release after its connection died."""

from __future__ import annotations

import threading
import time

import pytest

import holdfast
from holdfast.core.keys import aux
from tests.support.kit import Kit
from tests.support.quorum import Quorum

OWN_KIT = True


@pytest.mark.quorum(3)
async def test_a_late_grant_is_released_by_what_follows_it_on_its_connection(
    kit: Kit, quorum: Quorum
) -> None:
    """The third node gets the acquire when all is over, and the release right behind it. T1."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls)
    await kit.warm(hf, kit.name)
    grants_before = _granted(quorum, 2)
    quorum.proxies[2].hold("up")
    hold = await hf.lock(kit.name).acquire(wait=2)
    await hold.release()
    assert quorum.owners(kit.name) == [None, None, None]
    quorum.proxies[2].release()
    await kit.eventually(lambda: _granted(quorum, 2) >= grants_before + 2)
    assert quorum.left(kit.name) == [[], [], []]
    await kit.sleep(0.3)
    assert quorum.left(kit.name) == [[], [], []], "it came back"
    assert quorum.without_ttl() == []


def _granted(quorum: Quorum, number: int) -> int:
    """How many scripts that node has run."""
    stats = quorum.raws[number].info("commandstats")
    return sum(stats.get(f"cmdstat_{word}", {"calls": 0})["calls"] for word in ("eval", "evalsha"))


@pytest.mark.quorum(3)
async def test_a_late_grant_whose_connection_died_does_not_outlive_its_lease(
    kit: Kit, quorum: Quorum
) -> None:
    """The release went another way and was first: the acquire that comes behind takes nothing. T1."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls, timeout=0.3)
    await kit.warm(hf, kit.name)
    quorum.proxies[2].hold("up")
    lease = 1.0
    began = time.monotonic()
    hold = await hf.lock(kit.name, lease=lease, renew=False).acquire(wait=2)
    await hold.release()
    await kit.sleep(0.5)  # both requests wait in front of the node; their callers have given up
    quorum.proxies[2].release()
    await kit.sleep(0.05)
    await kit.eventually(lambda: quorum.left(kit.name) == [[], [], []], lease)
    assert time.monotonic() - began < 2 * lease + 0.5
    hold = await hf.lock(kit.name).acquire(wait=2)
    await hold.release()


@pytest.mark.quorum(3)
async def test_a_late_grant_after_a_reset_ends_with_the_lease_at_the_latest(
    kit: Kit, quorum: Quorum
) -> None:
    """Nothing more reaches the node: its key ends by itself, and is in nobody's way before. T3."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls, timeout=0.3)
    await kit.warm(hf, kit.name)
    quorum.proxies[2].hold("down")  # it acts, and nobody hears of it
    hold = await hf.lock(kit.name, lease=1, renew=False).acquire(wait=2)
    await kit.eventually(lambda: quorum.owners(kit.name)[2] == hold.owner)
    quorum.proxies[2].refuse()
    quorum.proxies[2].reset()
    await hold.release()
    after = await kit.lock().acquire(wait=2)  # the two others decide
    await after.release()
    await kit.eventually(lambda: quorum.owners(kit.name)[2] is None, 1.5)


@pytest.mark.quorum(5)
async def test_cancelled_while_nodes_are_silent_the_others_are_free_at_once(
    kit: Kit, quorum: Quorum
) -> None:
    """Given up in mid-vote: what was granted goes back, and so does what comes later. Case 32."""
    if kit.colour != "asyncio":
        pytest.skip("threads are not cancelled; Ctrl-C is in test_interrupted.py")
    quorum.through_proxies()
    hf = kit.connect(quorum.urls)
    await kit.warm(hf, kit.name)
    for number in (0, 1, 2):
        quorum.proxies[number].hold("up")
    flow = kit.spawn(hf.lock(kit.name).acquire(wait=5))
    await kit.eventually(lambda: quorum.owners(kit.name)[3] is not None)
    assert flow.cancel is not None
    flow.cancel()
    await kit.eventually(lambda: quorum.owners(kit.name)[3:] == [None, None])
    for number in (0, 1, 2):
        quorum.proxies[number].release()
    await kit.sleep(0.1)
    await kit.eventually(lambda: quorum.left(kit.name) == [[]] * 5)
    assert flow.done()


@pytest.mark.quorum(3)
async def test_a_renewal_under_way_does_not_revive_what_is_released(
    kit: Kit, quorum: Quorum
) -> None:
    """It waits in front of the node while the release goes by. Cases 46, T1, T9."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls, timeout=2)
    await kit.warm(hf, kit.name)
    hold = await hf.lock(kit.name, lease=1.2, on_lost="ignore").acquire(wait=2)
    quorum.proxies[2].hold("up")
    await kit.sleep(0.6)  # a renewal is on its way to all three
    try:
        await hold.release()
    except holdfast.LockLost:
        raise AssertionError("two nodes vouched all along") from None
    quorum.proxies[2].release()
    await kit.sleep(0.2)
    await kit.eventually(lambda: quorum.left(kit.name) == [[], [], []], 1.0)


@pytest.mark.quorum(3)
async def test_a_node_that_is_always_late_has_the_key_all_the_same(
    kit: Kit, quorum: Quorum
) -> None:
    """Nobody waits for it, but it is taught the script: one more node that vouches. Cases 56, T57."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls)
    quorum.proxies[2].delay(0.03)
    for flush in (False, True):
        if flush:
            quorum.raws[2].script_flush()
        for _ in range(3):
            hold = await hf.lock(kit.name).acquire(wait=2)
            await hold.release()
            await kit.sleep(0.2)
        hold = await hf.lock(kit.name).acquire(wait=2)
        await kit.eventually(lambda: quorum.owners(kit.name)[2] == hold.owner, 1)  # noqa: B023
        await hold.release()
        await kit.eventually(lambda: quorum.left(kit.name) == [[], [], []])


@pytest.mark.quorum(3)
async def test_a_release_reaches_a_slow_node_although_the_client_is_closed(
    kit: Kit, quorum: Quorum
) -> None:
    """Closing waits a moment for those that nobody waited for, and for a silent one no longer."""
    for silent in (False, True):
        hf = kit.connect(quorum.urls)
        await kit.warm(hf, kit.name)
        quorum.nodes[2].pause()
        hold = await hf.lock(kit.name).acquire(wait=2)
        await hold.release()
        if not silent:
            threading.Timer(0.05, quorum.nodes[2].resume).start()
        began = time.monotonic()
        await hf.close()
        assert time.monotonic() - began < 1.5
        quorum.nodes[2].resume()
        await kit.eventually(lambda: quorum.left(kit.name) == [[], [], []])


# ── connections that are lost, servers that are slower than others ─────────────────────────────


@pytest.mark.quorum(3, timeout=0.3)
async def test_a_hold_outlives_connections_that_vanished_silently(kit: Kit, quorum: Quorum) -> None:
    """New ones work: renewals and acquires find them, whoever owns what. Cases 37, 44, B13."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls)
    await kit.warm(hf, kit.name)
    hold = await hf.lock(kit.name, lease=8, on_lost="ignore").acquire()
    for proxy in quorum.proxies:
        proxy.forget()
    other = await hf.lock(f"{kit.name}-other").acquire(wait=10)
    await other.release()
    await kit.sleep(9)
    hold.ensure()
    await hold.release()
    await kit.eventually(lambda: quorum.left(kit.name) == [[], [], []], 8)


@pytest.mark.quorum(3)
async def test_a_node_that_is_slower_than_the_others_is_not_left_out_for_ever(
    kit: Kit, quorum: Quorum
) -> None:
    """After one failure it is asked again, and steady traffic does not make it look silent. 50."""
    quorum.through_proxies()
    hf = kit.connect(quorum.urls)
    await kit.warm(hf, kit.name)
    quorum.proxies[2].delay(0.02, "down")
    deployment = getattr(hf, "blocking", hf)._rt.deployments[2]
    deployment.failed(None)
    assert deployment.failures == 1
    ends = time.monotonic() + 3.0
    number = took_part = 0
    while time.monotonic() < ends:
        number += 1
        name = f"{kit.name}-{number}"
        hold = await hf.lock(name).acquire()
        await hold.release()
        await kit.sleep(0.012)
        if time.monotonic() > ends - 1.0:
            took_part += quorum.raws[2].exists(aux(f"{kit.name}-{number - 3}", "fence"))
    assert deployment.failures == 0
    assert took_part > 10, took_part


@pytest.mark.quorum(3)
async def test_closing_ends_an_acquire_that_is_under_way(kit: Kit, quorum: Quorum) -> None:
    """Connecting, or waiting for nodes that failed before: an error soon, and no hang. Case 36."""
    if kit.colour != "asyncio":
        pytest.skip("in threads, close() while another thread asks is in test_clients.py")
    quorum.through_proxies()
    for prepared in ("connecting", "failed"):
        hf = kit.connect(quorum.urls)
        if prepared == "failed":
            await kit.warm(hf, f"{kit.name}-warm")
            for deployment in hf._rt.deployments:
                deployment.failures = 1
        for proxy in quorum.proxies:
            proxy.hold("down")
        flow = kit.spawn(hf.lock(kit.name).acquire(wait=5))
        await kit.sleep(0.1)
        await hf.close()
        await kit.eventually(flow.done, 3)
        with pytest.raises(holdfast.UsageError, match="closed"):
            await flow.wait()
        for proxy in quorum.proxies:
            proxy.heal()
