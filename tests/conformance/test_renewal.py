"""Renewal and loss: the keeper renews what lives, and says so when something is lost."""

from __future__ import annotations

import gc
import time
import warnings

import pytest

import holdfast
from holdfast import events
from tests.support.kit import Kit


def keeper(client: object) -> object:
    """The keeper of a kit's client."""
    return getattr(client, "blocking", client)._kit.keeper  # type: ignore[attr-defined]


async def test_a_held_lock_is_renewed_however_long_it_takes(kit: Kit) -> None:
    """Explicit leases are renewed too: giving one does not switch renewal off. Case T13."""
    async with kit.lock(lease=0.4) as hold:
        for _ in range(6):
            await kit.sleep(0.2)
            hold.ensure()
            assert kit.raw.pttl(kit.name) > 50


async def test_without_renewal_the_lock_ends_with_its_lease(kit: Kit) -> None:
    """`renew=False` is visible and does what it says. Case T13."""
    hold = await kit.lock(lease=0.3, renew=False).acquire()
    await kit.sleep(0.35)
    assert not kit.raw.exists(kit.name)
    with pytest.raises(holdfast.LockLost):
        hold.ensure()


async def test_renewal_never_prolongs_what_belongs_to_somebody_else(kit: Kit) -> None:
    """Taken over: the stranger's TTL only falls, and our hold is lost, with the reason. 6, T09."""
    hold = await kit.lock(lease=0.6).acquire()
    kit.raw.set(kit.name, "stranger", px=900)
    await kit.eventually(hold.lost.is_set, 2)
    with pytest.raises(holdfast.LockLost) as caught:
        hold.ensure()
    assert caught.value.reason == "taken by stranger"
    await kit.sleep(0.5)
    assert kit.raw.pttl(kit.name) < 500
    with pytest.raises(holdfast.LockLost):
        await hold.release()


async def test_extend_is_absolute_and_never_shortens(kit: Kit) -> None:
    """Twice 20 s are 20 s, not 40; a shorter one changes nothing. Cases 43, B7, T14."""
    hold = await kit.lock(lease=5, renew=False).acquire()
    await hold.extend(20)
    await hold.extend(20)
    assert 18_000 < kit.raw.pttl(kit.name) <= 20_000
    assert 18 < hold.remaining() < 20
    await hold.extend(1)
    assert kit.raw.pttl(kit.name) > 18_000
    assert hold.remaining() > 18
    await hold.release()


async def test_a_loss_is_reported_once_with_its_reason(kit: Kit) -> None:
    """One event per loss; nothing else is ever said of that hold again. Cases 42, 44, 45."""
    told: list[events.Event] = []
    getattr(kit.hf, "blocking", kit.hf).subscribe(told.append, [events.Lost, events.Renewed])
    hold = await kit.lock(lease=0.3).acquire()
    kit.raw.delete(kit.name)
    await kit.eventually(hold.lost.is_set, 2)
    await kit.sleep(0.4)
    lost = [event for event in told if isinstance(event, events.Lost)]
    assert [(e.owner, e.reason) for e in lost] == [(hold.owner, "expired or deleted")]
    assert told[-1] is lost[0]
    with pytest.raises(holdfast.LockLost):
        await hold.release()


async def test_a_lost_hold_never_becomes_held_again(kit: Kit) -> None:
    """The key comes back with our own id: too late, lost is final. Cases 44, 47."""
    hold = await kit.lock(lease=0.2, renew=False).acquire()
    await kit.sleep(0.25)
    assert hold.lost.is_set()
    kit.raw.set(kit.name, hold.owner, px=5000)
    assert hold.lost.is_set()
    assert hold.remaining() == 0
    with pytest.raises(holdfast.LockLost):
        await hold.extend(5)
    with pytest.raises(holdfast.LockLost):
        await hold.release()
    assert not kit.raw.exists(kit.name)  # freed all the same: it carried our id


async def test_a_second_period_is_renewed_too(kit: Kit) -> None:
    """Release, acquire again: renewed like the first, and the keeper keeps one. Cases T05, T07."""
    lock = kit.lock(lease=0.3)
    for _ in range(3):
        hold = await lock.acquire(wait=2)
        await kit.sleep(0.5)
        hold.ensure()
        await hold.release()
    assert keeper(kit.hf).kept() == 0  # type: ignore[attr-defined]


async def test_a_dropped_hold_is_renewed_no_more(kit: Kit) -> None:
    """The last reference is gone: a warning, and the key dies within a lease. 39, 35, T03, T04."""
    hold = await kit.lock(lease=0.4).acquire()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del hold
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert "dropped without release" in str(caught[0].message)
    await kit.eventually(lambda: not kit.raw.exists(kit.name), 1.0)


async def test_max_hold_ends_the_lock_even_if_the_body_hangs(kit: Kit) -> None:
    """Renewal stops at max_hold; the hold is lost then, and others get the lock. Case 40."""
    hold = await kit.lock(lease=0.3, max_hold=0.5).acquire()
    began = time.monotonic()
    other = await kit.lock().acquire(wait=5)
    assert 0.3 < time.monotonic() - began < 2.0
    assert hold.lost.is_set()
    with pytest.raises(holdfast.LockLost) as caught:
        hold.ensure()
    assert caught.value.reason == "max_hold reached"
    await other.release()


async def test_grace_keeps_the_key_longer_than_the_holder_believes(kit: Kit) -> None:
    """Lost by the holder's clock, still closed to others for `grace`; a release frees at once."""
    hold = await kit.lock(lease=0.2, grace=0.6, renew=False, on_lost="ignore").acquire()
    await kit.sleep(0.25)
    assert hold.lost.is_set()
    assert await kit.lock().try_acquire() is None
    await kit.sleep(0.65)
    other = await kit.lock(lease=5, grace=5).try_acquire()
    assert other is not None
    await other.release()
    assert not kit.raw.exists(kit.name)


async def test_holding_many_costs_nothing_when_released(kit: Kit) -> None:
    """A hundred thousand locks by name leave no objects behind. Case 49."""
    for number in range(kit.many(1_000, 100_000)):
        await (await kit.lock(f"{kit.name}-{number}", lease=30).acquire()).release()
    gc.collect()
    holds = [o for o in gc.get_objects() if type(o).__name__ in {"AsyncHold", "Hold"}]
    assert len(holds) < 5
    assert keeper(kit.hf).kept() == 0  # type: ignore[attr-defined]


async def test_an_error_with_one_lock_does_not_stop_the_others(kit: Kit) -> None:
    """One key becomes a list: its renewal fails for ever, the neighbours are renewed. Case T08."""
    sick = await kit.lock(f"{kit.name}-sick", lease=0.5, on_lost="ignore").acquire()
    well = [await kit.lock(f"{kit.name}-{n}", lease=0.5).acquire() for n in range(5)]
    kit.raw.delete(f"{kit.name}-sick")
    kit.raw.rpush(f"{kit.name}-sick", "x")
    await kit.sleep(1.2)
    assert sick.lost.is_set()
    for hold in well:
        hold.ensure()
        await hold.release()
    kit.raw.delete(f"{kit.name}-sick")


async def test_lost_can_be_waited_for(kit: Kit) -> None:
    """`hold.lost.wait()` ends at the loss, at a timeout, or with the release. Case T11."""
    hold = await kit.lock(lease=0.2, renew=False).acquire()
    assert await hold.lost.wait(0.01) is False
    began = time.monotonic()
    assert await hold.lost.wait() is True
    assert time.monotonic() - began < 0.5
    kept = await kit.lock().acquire(wait=2)
    waiting = kit.spawn(kept.lost.wait(5))
    await kit.sleep(0.05)
    await kept.release()
    began = time.monotonic()
    assert await waiting.wait() is False
    assert time.monotonic() - began < 2
