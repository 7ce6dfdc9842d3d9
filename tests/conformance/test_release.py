"""Releasing, and the end of blocks: nothing is swallowed, nothing is replaced, nothing hangs."""

from __future__ import annotations

import time
import warnings

import pytest

import holdfast
from holdfast.core.keys import aux
from tests.support.kit import Kit


async def test_the_lock_is_released_on_every_kind_of_exit(kit: Kit) -> None:
    """Normal end, Exception, BaseException, return and break. Case 31."""
    lock = kit.lock()
    for kind in (ValueError, KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(kind):
            async with lock:
                raise kind()
        assert not kit.raw.exists(kit.name), kind
    for _ in range(2):
        async with lock:
            break
    assert not kit.raw.exists(kit.name)


async def test_the_exception_of_the_body_leaves_the_block(kit: Kit) -> None:
    """The lock was lost as well: that becomes a note on the body's own exception. 30, B8."""
    with pytest.raises(KeyError) as caught:
        async with kit.lock(lease=0.05, renew=False, on_lost="warn"):
            await kit.sleep(0.1)
            raise KeyError("mine")
    assert any("was lost" in note for note in caught.value.__notes__)


async def test_releasing_an_expired_lock_ends_at_once(kit: Kit) -> None:
    """No retries, no waiting: "was lost", with the reason. Cases 33, T19, T72."""
    hold = await kit.lock(lease=0.05, renew=False).acquire()
    await kit.sleep(0.1)
    began = time.monotonic()
    with pytest.raises(holdfast.LockLost):
        await hold.release()
    assert time.monotonic() - began < 0.5


async def test_releasing_what_somebody_else_took_says_so(kit: Kit) -> None:
    """The key was replaced under us: LockLost names the taker, and it keeps the lock. 42, T19."""
    hold = await kit.lock().acquire()
    kit.raw.set(kit.name, "somebody-else", px=5000)
    with pytest.raises(holdfast.LockLost) as caught:
        await hold.release()
    assert caught.value.reason == "taken by somebody-else"
    assert kit.owner() == "somebody-else"
    kit.raw.delete(kit.name)


async def test_releasing_twice_is_harmless(kit: Kit) -> None:
    """The second release does nothing, not even to a newer hold of the same lock. Case T18."""
    lock = kit.lock()
    first = await lock.acquire()
    await first.release()
    second = await lock.acquire()
    await first.release()
    assert kit.owner() == second.owner
    await second.release()


async def test_release_inside_the_block_is_allowed(kit: Kit) -> None:
    """Early release; the end of the block finds nothing left to do."""
    async with kit.lock() as hold:
        await hold.release()
        assert not kit.raw.exists(kit.name)


async def test_what_a_hold_says_is_never_stale(kit: Kit) -> None:
    """`remaining`, `lost`, `ensure` follow the deadline, without any event. Case 34."""
    hold = await kit.lock(lease=0.1, renew=False).acquire()
    assert hold.remaining() > 0
    assert not hold.lost.is_set()
    await kit.sleep(0.12)
    assert hold.remaining() == 0
    assert hold.lost.is_set()
    with pytest.raises(holdfast.LockLost):
        hold.ensure()
    with pytest.raises(holdfast.LockLost):
        await hold.release()


async def test_each_policy_for_a_loss(kit: Kit) -> None:
    """raise, warn, ignore, and a function that is told when it happens. Case 29."""
    with pytest.raises(holdfast.LockLost):
        async with kit.lock(lease=0.05, renew=False):
            await kit.sleep(0.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with kit.lock(lease=0.05, renew=False, on_lost="warn"):
            await kit.sleep(0.1)
    assert [w.category for w in caught] == [holdfast.LockLostWarning]
    async with kit.lock(lease=0.05, renew=False, on_lost="ignore"):
        await kit.sleep(0.1)
    told = []
    async with kit.lock(lease=0.05, renew=False, on_lost=told.append) as hold:
        await kit.eventually(lambda: bool(told), 2)
    assert [type(x) for x in told] == [type(getattr(hold, "blocking", hold))]
    assert told[0].fence == hold.fence


async def test_a_lock_can_be_entered_by_many_flows_at_once(kit: Kit) -> None:
    """One lock object, `with` in several flows: each leaves its own block."""
    lock = kit.lock(wait=20)
    count = 0

    async def flow() -> None:
        nonlocal count
        for _ in range(5):
            async with lock:
                before = count
                await kit.sleep(0.001)
                count = before + 1

    flows = [kit.spawn(flow()) for _ in range(4)]
    for running in flows:
        await running.wait()
    assert count == 20


async def test_no_key_survives_renewals_that_race_with_releases(kit: Kit) -> None:
    """Very short leases, renewed all the time, released at random: nothing remains. 46, T01."""
    lock = kit.lock(lease=0.03, on_lost="ignore")
    for number in range(400):
        hold = await lock.acquire(wait=5)
        if number % 3 == 0:
            await kit.sleep(0.004 * (number % 5))
        try:
            await hold.release()
        except holdfast.LockLost:
            pass  # a busy machine may miss a lease of 30 ms: then it was lost, and said so
    await kit.sleep(0.05)
    assert not kit.raw.exists(kit.name)


async def test_a_loss_inside_the_block_is_visible_at_its_end(kit: Kit) -> None:
    """Also where nothing in the body looked: the block does not end as if all were well. B21."""
    with pytest.raises(holdfast.LockLost):
        async with kit.lock(lease=0.05, renew=False):
            try:
                await kit.sleep(0.2)
            except BaseException:
                pass  # a body that swallows even the cancellation


async def test_misuse_inside_the_block_does_not_replace_the_body_s_exception(kit: Kit) -> None:
    """The key became a list meanwhile: a note on the body's own error. Case 30."""
    with pytest.raises(KeyError) as caught:
        async with kit.lock(on_lost="ignore"):
            kit.raw.delete(kit.name)
            kit.raw.rpush(kit.name, "x")
            raise KeyError("mine")
    assert any("another kind of value" in note for note in caught.value.__notes__)
    kit.raw.delete(kit.name)


async def test_a_forced_release_is_named_by_the_release_too(kit: Kit) -> None:
    """Not only renewals find out why: the reason is the same. Case 42."""
    hold = await kit.lock().acquire()
    await kit.lock().force_release()
    with pytest.raises(holdfast.LockLost) as caught:
        await hold.release()
    assert caught.value.reason == "released by force"


async def test_names_that_differ_by_braces_are_strangers(kit: Kit) -> None:
    """A lock named {x} and one named x have helper keys of their own. Cases 59, T24."""
    plain, braced = kit.lock(), kit.lock(f"{{{kit.name}}}")
    first, second = await plain.acquire(wait=0), await braced.acquire(wait=0)
    waiting = kit.spawn(plain.acquire(wait=5))
    await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 1)
    await second.release()
    again = await braced.try_acquire()
    assert again is not None
    await again.release()
    await first.release()
    await (await waiting.wait()).release()
