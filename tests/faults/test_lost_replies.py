"""Replies that are lost, connections that break, servers that hang: at each exchange in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis

import holdfast
import holdfast.aio
from holdfast import events
from holdfast.core.keys import aux
from holdfast.locks.lock import CLAIM_MS
from holdfast.server import Server
from tests.support.kit import COLOURS, Deployment, Kit, plain
from tests.support.proxy import Proxy

pytestmark = pytest.mark.timeout(120)
OWN_KIT = True


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made


@pytest.fixture(params=list(COLOURS))
def kit(request: pytest.FixtureRequest, server: Server, proxy: Proxy, name: str) -> Iterator[Kit]:
    """A kit whose client talks through the proxy; `raw` does not."""
    deployment = Deployment("proxied", proxy.url, lambda: plain(server.url), server=server)
    made = COLOURS[request.param](deployment, name, request.param)
    yield made
    made.raw.close()


async def test_a_lost_reply_to_acquire_is_found_again(kit: Kit, proxy: Proxy) -> None:
    """The grant happened, the reply did not come: acquire is true, once. Cases 52, B5, T17."""
    lock = kit.lock(wait=0)
    await (await lock.acquire()).release()
    proxy.drop_next_reply()
    hold = await lock.acquire()
    assert proxy.dropped_a_reply
    assert kit.owner() == hold.owner
    await hold.release()
    assert not kit.raw.exists(kit.name)


@pytest.mark.parametrize("acks", [None, 1])
async def test_an_acquire_that_a_frozen_server_reads_later_is_undone_behind_it(
    kit: Kit, acks: int | None
) -> None:
    """Given up meanwhile: the undo follows it, and is not lost behind a WAIT. Cases 62, B2, T53."""
    with Server() as own, plain(own.url) as raw:
        hf = kit.connect(own.url, timeout=0.3)
        await (await hf.lock(f"{kit.name}-warm").acquire()).release()
        own.pause()
        with pytest.raises(holdfast.NodeError):
            await hf.lock(kit.name, acks=acks).acquire(wait=0.2)
        own.resume()
        await kit.sleep(0.5)  # WAIT, if it was sent, waits for a replica that is not there
        assert raw.get(kit.name) is None, "it is taken, and nobody holds it"


@pytest.mark.parametrize("acks", [None, 1])
def test_a_cancelled_acquire_that_is_held_back_is_undone_behind_it(
    server: Server, raw: redis.Redis, proxy: Proxy, name: str, acks: int | None
) -> None:
    """asyncio: the undo goes out on the same connection, also where WAIT needs its own. 62, B2."""

    async def main() -> None:
        for number in range(8):
            async with holdfast.aio.connect(proxy.url, timeout=1) as hf:
                await (await hf.lock(f"{name}-warm").acquire()).release()
                proxy.hold("up")
                task = asyncio.create_task(hf.lock(f"{name}-{number}", acks=acks).acquire())
                await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.sleep(0.1)
                proxy.release("up")
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.sleep(0.2)
            assert raw.get(f"{name}-{number}") is None, "it is taken, and nobody holds it"

    asyncio.run(main())


async def test_a_lost_reply_to_release_is_a_release(kit: Kit, proxy: Proxy) -> None:
    """No "not owner" for a release that worked; and only once, not for a newer hold. B6, T16, T18."""
    hold = await kit.lock().acquire()
    proxy.drop_next_reply()
    await hold.release()
    assert proxy.dropped_a_reply
    assert not kit.raw.exists(kit.name)


async def test_a_lost_reply_to_extend_does_not_add_twice(kit: Kit, proxy: Proxy) -> None:
    """Extend is absolute. Case B7."""
    hold = await kit.lock(renew=False).acquire()
    proxy.drop_next_reply()
    await hold.extend(20)
    assert proxy.dropped_a_reply
    assert 25_000 < kit.raw.pttl(kit.name) <= 30_000
    await hold.extend(40)
    assert 38_000 < kit.raw.pttl(kit.name) <= 40_000
    await hold.release()


async def test_one_lost_reply_at_each_exchange_of_a_whole_story(kit: Kit, proxy: Proxy) -> None:
    """Connect, acquire, wait, wake, extend, release: the k-th reply lost, for every k. T02, B5-B7."""
    at = 0
    while True:
        at += 1
        first, second = kit.connect(timeout=1), kit.connect(timeout=1)
        name = f"{kit.name}-{at}"
        proxy.drop_next_reply(at)
        hold = await first.lock(name).acquire(wait=5)

        async def successor(second: object = second, name: str = name) -> None:
            async with second.lock(name, wait=10) as got:  # type: ignore[attr-defined]
                await got.extend(60)

        flow = kit.spawn(successor())
        await kit.sleep(0.1)
        await hold.extend(50)
        assert hold.remaining() > 0
        await hold.release()
        await flow.wait()
        assert not kit.raw.exists(name)
        assert kit.raw.zcard(aux(name, "queue")) == 0
        reached = proxy.dropped_a_reply
        proxy.heal()
        await first.close()
        await second.close()
        if not reached:
            break
    assert at > 6


async def test_a_renewal_whose_reply_is_lost_is_repeated(kit: Kit, proxy: Proxy) -> None:
    """One connection error does not end renewal, and is reported. Cases 37, 44, B13."""
    failed: list[events.Event] = []
    client = getattr(kit.hf, "blocking", kit.hf)
    client.subscribe(failed.append, [events.RenewalFailed])
    hold = await kit.lock(lease=1).acquire()
    for _ in range(3):
        proxy.drop_next_reply()
        await kit.sleep(0.6)
        hold.ensure()
    assert failed
    await hold.release()


async def test_loss_is_signalled_at_the_deadline_while_a_renewal_hangs(
    kit: Kit, proxy: Proxy
) -> None:
    """The server is silent: the hold says "lost" by its own clock, not by an answer. 41, T10, T11."""
    told: list[float] = []
    hold = await kit.lock(lease=0.8, on_lost=lambda _: told.append(time.monotonic())).acquire()
    granted = time.monotonic()
    proxy.hold()
    await kit.eventually(lambda: bool(told), 5)  # nobody asks the hold: its timer must say so
    took = told[0] - granted
    assert 0.5 < took < 0.95, took
    assert await hold.lost.wait(5) is True
    with pytest.raises(holdfast.LockLost) as caught:
        hold.ensure()
    assert caught.value.reason == "expired"
    began = time.monotonic()
    proxy.release()
    with pytest.raises(holdfast.LockLost):
        await hold.release()
    assert time.monotonic() - began < 2.0


async def test_a_failed_release_stops_renewal_and_can_be_repeated(kit: Kit, proxy: Proxy) -> None:
    """The network is gone: Unavailable, then the key dies by itself; repeating works. B1, T03, T22."""
    hf = kit.connect(timeout=0.3)
    hold = await hf.lock(kit.name, lease=1.5).acquire()
    proxy.refuse()
    proxy.reset()
    began = time.monotonic()
    with pytest.raises(holdfast.Unavailable):
        await hold.release()
    assert time.monotonic() - began < 1.2
    proxy.accept()
    await hold.release()
    assert not kit.raw.exists(kit.name)
    again = await hf.lock(kit.name, lease=0.6).acquire()
    proxy.refuse()
    proxy.reset()
    with pytest.raises(holdfast.Unavailable):
        await again.release()
    await kit.eventually(lambda: not kit.raw.exists(kit.name), 1.0)
    proxy.accept()


async def test_the_end_of_a_block_does_not_fail_because_the_release_did(
    kit: Kit, proxy: Proxy
) -> None:
    """The body was under the lock from start to end: an event, no exception; bounded. Case 36."""
    told: list[events.Event] = []
    hf = kit.connect(timeout=0.3)
    getattr(hf, "blocking", hf).subscribe(told.append, [events.ReleaseFailed])
    async with hf.lock(kit.name, lease=2):
        proxy.refuse()
        proxy.reset()
        began = time.monotonic()
    assert time.monotonic() - began < 1.5
    assert len(told) == 1
    with pytest.raises(KeyError) as caught:
        proxy.accept()
        async with hf.lock(f"{kit.name}-2", lease=2):
            proxy.refuse()
            proxy.reset()
            raise KeyError("body")
    assert any("release failed" in note for note in caught.value.__notes__)
    proxy.accept()


async def test_an_unreachable_server_is_not_a_taken_lock(kit: Kit, proxy: Proxy) -> None:
    """Refused connections end in Unavailable, surely not sent, within bounds. Cases 5, 54."""
    hf = kit.connect(timeout=0.3)
    proxy.refuse()
    began = time.monotonic()
    with pytest.raises(holdfast.NodeError) as caught:
        await hf.lock(kit.name).acquire(wait=0.3)
    assert not caught.value.sent
    assert caught.value.name == kit.name
    with pytest.raises(holdfast.NodeError):
        await hf.lock(kit.name).try_acquire()
    assert time.monotonic() - began < 2
    proxy.accept()
    await (await hf.lock(kit.name).acquire(wait=1)).release()


async def test_a_silent_server_ends_in_unavailable_and_leaves_no_lock(
    kit: Kit, proxy: Proxy
) -> None:
    """Requests arrive, replies do not: bounded, `sent` is true, and the undo follows. Cases 36, T02."""
    hf = kit.connect(timeout=0.4)
    await (await hf.lock(f"{kit.name}-warm").acquire()).release()
    proxy.hold("down")
    began = time.monotonic()
    with pytest.raises(holdfast.NodeError) as caught:
        await hf.lock(kit.name).acquire(wait=0.3)
    assert caught.value.sent
    assert time.monotonic() - began < 3
    await kit.eventually(lambda: not kit.raw.exists(kit.name), CLAIM_MS / 1000)
    proxy.release()


async def test_a_request_that_was_stuck_never_overtakes_its_undo(kit: Kit, proxy: Proxy) -> None:
    """Nothing arrives until much later, then all at once: the acquire first, then its undo. R3."""
    hf = kit.connect(timeout=0.3)
    await (await hf.lock(f"{kit.name}-warm").acquire()).release()
    proxy.hold("up")
    with pytest.raises(holdfast.NodeError):
        await hf.lock(kit.name).acquire(wait=0.2)
    assert not kit.raw.exists(kit.name)
    proxy.release("up")
    await kit.sleep(0.3)
    assert not kit.raw.exists(kit.name)


async def test_a_lost_inbox_is_reopened_and_nobody_waits_for_ever(kit: Kit, proxy: Proxy) -> None:
    """Connections cut while waiting: subscribe again, look again, be woken again. T26, T29, T33."""
    stranger = plain(kit.deployment.server.url)
    hold = await kit.lock().acquire()
    waiting = kit.spawn(kit.lock().acquire(wait=10))
    await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 1)
    await kit.sleep(0.1)
    proxy.reset()
    await kit.sleep(0.3)
    began = time.monotonic()
    await hold.release()
    second = await waiting.wait()
    assert time.monotonic() - began < 1.0
    await second.release()
    stranger.close()


async def test_a_connection_that_was_killed_while_idle_is_replaced(kit: Kit) -> None:
    """CLIENT KILL between two calls costs the caller nothing. Case 47."""
    lock = kit.lock(wait=1)
    for _ in range(3):
        await (await lock.acquire()).release()
        for client in kit.raw.client_list():
            if int(client["id"]) != int(kit.raw.client_id()):
                try:
                    kit.raw.client_kill_filter(_id=client["id"])
                except redis.ResponseError:
                    pass
        hold = await lock.acquire()
        await hold.release()
