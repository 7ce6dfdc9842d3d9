"""The lock as its users see it: grants, refusals, leases, owners. Every colour, every server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast.core.keys import aux
from tests.support.kit import Kit, one_primary


async def test_a_free_lock_is_granted_in_one_round_trip(kit: Kit) -> None:
    """One script run to acquire and one to release, on each node; nothing else is sent. Case 23."""
    lock = kit.lock()
    await (await lock.acquire()).release()  # connected, and the scripts are known
    before = await _scripts_run_in_all(kit)
    hold = await lock.acquire()
    await hold.release()
    nodes = max(1, len(kit.deployment.members))
    assert await _scripts_run_in_all(kit) - before == 2 * nodes


async def _scripts_run_in_all(kit: Kit) -> int:
    # Over several primaries the caller has its answer before the slowest node has acted.
    last, now = -1, _scripts_run(kit)
    while last != now:
        await kit.sleep(0.05 if kit.deployment.members else 0)
        last, now = now, _scripts_run(kit)
    return now


def _scripts_run(kit: Kit) -> int:
    members = kit.deployment.cluster.nodes if kit.deployment.cluster else kit.deployment.members
    if members:
        servers = [node.command("INFO", "commandstats") for node in members]
    else:
        servers = [
            "".join(f"cmdstat_{k}:calls={v['calls']},\n" for k, v in _stats(kit.raw).items())
        ]
    total = 0
    for text in servers:
        for line in str(text).splitlines():
            if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:")):
                total += int(line.partition("calls=")[2].partition(",")[0])
    return total


def _stats(raw: Any) -> dict[str, Any]:
    return {key.removeprefix("cmdstat_"): v for key, v in raw.info("commandstats").items()}


async def test_a_second_owner_is_refused_until_the_first_releases(kit: Kit) -> None:
    """Mutual exclusion, and try_acquire as the clean "try once". Case 26."""
    hold = await kit.lock().acquire()
    assert await kit.lock().try_acquire() is None
    with pytest.raises(holdfast.LockTimeout) as caught:
        async with kit.lock(wait=0):
            pytest.fail("the body ran without the lock")
    assert caught.value.holder == hold.owner
    await hold.release()
    other = await kit.lock().try_acquire()
    assert other is not None
    await other.release()


async def test_the_body_never_runs_without_the_lock(kit: Kit) -> None:
    """A wait that times out raises out of `with`. Case 7."""
    async with kit.lock():
        ran = False
        with pytest.raises(holdfast.LockTimeout):
            async with kit.lock(wait=0.05):
                ran = True
        assert not ran


async def test_the_wait_of_a_call_beats_the_wait_of_the_lock(kit: Kit) -> None:
    """`acquire(wait=)` is not ignored. Case 8."""
    patient = kit.lock(wait=20)
    async with kit.lock():
        with pytest.raises(holdfast.LockTimeout) as caught:
            await patient.acquire(wait=0.05)
    assert 0.04 < caught.value.waited < 2


async def test_a_fraction_of_a_second_is_a_fraction_of_a_second(kit: Kit) -> None:
    """Leases and waits of 0.05 s work and end in time. Cases 10, B12."""
    hold = await kit.lock(lease=0.05, renew=False).acquire()
    assert 0 < hold.remaining() <= 0.05
    began = _now()
    other = await kit.lock(lease=timedelta(milliseconds=50)).acquire(wait=0.9)
    assert _now() - began < 0.8
    await other.release()
    async with kit.lock():
        began = _now()
        with pytest.raises(holdfast.LockTimeout):
            await kit.lock().acquire(wait=0.05)
        assert 0.045 < _now() - began < 1.0


def _now() -> float:
    import time

    return time.monotonic()


async def test_no_moment_without_a_ttl(kit: Kit) -> None:
    """Every key that exists while held and while waited for has a TTL. Cases 12, 13."""
    hold = await kit.lock().acquire()
    waiting = kit.spawn(kit.lock().acquire(wait=5))
    await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 1)
    assert len(kit.left()) == (3 if kit.deployment.members else 4)
    assert all(kit.raw.pttl(key) > 0 for key in kit.left())
    await hold.release()
    second = await waiting.wait()
    assert all(kit.raw.pttl(key) > 0 for key in kit.left())
    await second.release()


async def test_the_default_lock_has_a_lease(kit: Kit) -> None:
    """Nobody has to ask for a TTL. Case 13."""
    async with kit.lock():
        assert 25_000 < kit.raw.pttl(kit.name) <= 30_000


async def test_the_lease_is_the_same_each_time(kit: Kit) -> None:
    """Neither an earlier extend nor an earlier acquisition leaks into the next. Case T14."""
    lock = kit.lock(lease=7)
    hold = await lock.acquire()
    await hold.extend(100)
    assert kit.raw.pttl(kit.name) > 90_000
    await hold.release()
    for _ in range(2):
        hold = await lock.acquire()
        assert 6_000 < kit.raw.pttl(kit.name) <= 7_000
        await hold.release()


async def test_two_uses_of_one_lock_object_are_two_owners(kit: Kit) -> None:
    """A's late release is refused and B stays the owner, in one process. Cases 3, 4, B3, T20."""
    lock = kit.lock(lease=0.1, renew=False)
    a = await lock.acquire()
    await kit.sleep(0.15)
    b = await kit.lock(lease=10).acquire()
    with pytest.raises(holdfast.LockLost):
        await a.release()
    with pytest.raises(holdfast.LockLost):
        await a.extend(5)
    assert kit.owner() == b.owner
    assert b.remaining() > 5
    await b.release()


async def test_a_second_acquire_blocks_whoever_asks(kit: Kit) -> None:
    """The same flow, another flow, a child flow: none gets what is held. Case T20."""
    lock = kit.lock()
    hold = await lock.acquire()
    assert await lock.try_acquire() is None
    assert await kit.spawn(lock.try_acquire()).wait() is None
    await hold.release()


async def test_a_failed_second_acquire_keeps_the_first(kit: Kit) -> None:
    """Trying again on a held object does not disturb its hold. Cases B20, B23."""
    lock = kit.lock()
    hold = await lock.acquire()
    value, pttl = kit.owner(), kit.raw.pttl(kit.name)
    for _ in range(3):
        assert await lock.try_acquire() is None
    assert kit.owner() == value
    assert kit.raw.pttl(kit.name) > pttl - 2_000
    await hold.release()
    assert not kit.raw.exists(kit.name)


async def test_any_flow_may_extend_and_release(kit: Kit) -> None:
    """A hold carries its identity: acquired here, used there. Cases 2, B4, T21."""
    hold = await kit.lock().acquire()

    async def elsewhere() -> None:
        assert hold.remaining() > 0
        hold.ensure()
        await hold.extend(60)
        await hold.release()

    await kit.spawn(elsewhere()).wait()
    assert not kit.raw.exists(kit.name)


async def test_a_hold_acquired_in_a_child_flow_works(kit: Kit) -> None:
    """Acquired in a spawned thread or task, released by the parent. Case B26's second half."""
    hold = await kit.spawn(kit.lock().acquire()).wait()
    assert kit.owner() == hold.owner
    await hold.release()


async def test_errors_tell_what_is_the_matter(kit: Kit) -> None:
    """Lost, taken, released, too late: each has its own type, and says the name. Cases 5, 27."""
    hold = await kit.lock(lease=0.05, renew=False).acquire()
    await kit.sleep(0.06)
    with pytest.raises(holdfast.LockLost) as lost:
        await hold.release()
    assert lost.value.reason == "expired"
    assert lost.value.name == kit.name
    async with kit.lock() as held:
        with pytest.raises(holdfast.LockTimeout) as timeout:
            await kit.lock().acquire(wait=0.01)
        assert timeout.value.name == kit.name
        assert held.owner in str(timeout.value)
    with pytest.raises(holdfast.UsageError):
        held.ensure()


async def test_the_wall_clock_does_not_matter(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall clocks that jump by a day during a wait or a hold change nothing. Case 9."""
    import time

    true = time.time
    hold = await kit.lock(lease=20).acquire()
    for shift in (86400.0, -86400.0):
        monkeypatch.setattr(time, "time", lambda shift=shift: true() + shift)
        assert 18 < hold.remaining() < 20
        began = _now()
        with pytest.raises(holdfast.LockTimeout):
            await kit.lock().acquire(wait=0.1)
        assert 0.09 < _now() - began < 1.0
    monkeypatch.undo()
    hold.ensure()
    await hold.release()


async def test_nothing_is_left_when_all_is_released(kit: Kit) -> None:
    """After many rounds with and without waiters only the fence remains, with a TTL. 14, 15."""
    lock = kit.lock()
    for _ in range(kit.many(200, 10_000)):
        await (await lock.acquire()).release()
    hold = await lock.acquire()

    async def turn() -> None:
        await (await lock.acquire(wait=10)).release()

    waiting = [kit.spawn(turn()) for _ in range(3)]
    await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 3)
    await hold.release()
    for flow in waiting:
        await flow.wait()
    left = set(kit.left())
    assert left <= {aux(kit.name, "fence"), aux(kit.name, "waiters")}
    assert all(kit.raw.pttl(key) > 0 for key in left)


async def test_a_lock_without_renewal_still_excludes(kit: Kit) -> None:
    """`renew=False` changes nothing about exclusion while the lease lasts. Case B16."""
    hold = await kit.lock(renew=False, lease=5).acquire()
    assert await kit.lock(renew=False, lease=5).try_acquire() is None
    await hold.release()


async def test_decorated_functions_run_under_the_lock(kit: Kit) -> None:
    """Each call acquires, runs and releases; results and exceptions pass through."""
    seen: list[Any] = []

    async def work(value: int) -> int:
        seen.append(kit.owner())
        if value < 0:
            raise KeyError(value)
        return value * 2

    decorated = kit.lock(wait=1)(work)
    assert await decorated(21) == 42
    with pytest.raises(KeyError):
        await decorated(-1)
    assert None not in seen
    assert not kit.raw.exists(kit.name)


async def test_the_value_of_finished_work_is_not_lost(kit: Kit) -> None:
    """A decorated function that finished after a loss hands its result to the error. Case 29."""
    lock = kit.lock(lease=0.05, renew=False, on_lost="raise")

    async def work() -> str:
        if kit.colour == "blocking":
            await kit.sleep(0.1)
        else:
            try:
                await kit.sleep(5)
            except asyncio.CancelledError:
                return "done"
        return "done"

    with pytest.raises(holdfast.LockLost) as caught:
        await lock(work)()
    assert caught.value.result == "done"


async def test_info_tells_who_holds_and_who_waits(kit: Kit) -> None:
    """Holder, label, lease, fence and queue for people; a free lock is no error. Case 67."""
    lock = kit.lock(label="nightly report")
    free = await lock.info()
    assert (free.holder, free.expires_in, free.waiting) == (None, None, 0)
    hold = await lock.acquire()
    waiting = kit.spawn(kit.lock().acquire(wait=5))
    await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 1)
    info = await lock.info()
    assert info.holder == hold.owner
    assert info.label == "nightly report"
    assert info.expires_in is not None
    assert 25 < info.expires_in <= 30
    assert info.fence == hold.fence
    assert (info.waiting, len(info.waiters)) == (1, 1)
    await hold.release()
    await (await waiting.wait()).release()


async def test_info_survives_a_holder_that_vanishes(kit: Kit) -> None:
    """Asking "who holds it" while the lock comes and goes never fails. Case 67."""
    lock = kit.lock()

    async def churn() -> None:
        for _ in range(100):
            await (await lock.acquire()).release()

    flow = kit.spawn(churn())
    while not flow.done():
        info = await lock.info()
        assert (info.holder is None) == (info.expires_in is None)
        await kit.sleep(0)
    await flow.wait()


async def test_force_release_passes_the_lock_on(kit: Kit) -> None:
    """The next waiter gets it at once; the old holder finds out, with the reason. Case 42."""
    hold = await kit.lock(lease=0.6).acquire()
    await kit.held_everywhere(hold)
    waiting = kit.spawn(kit.lock().acquire(wait=5))
    await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 1)
    assert await kit.lock().force_release() == hold.owner
    successor = await waiting.wait()
    assert successor.fence > hold.fence
    await kit.eventually(hold.lost.is_set, 2)
    with pytest.raises(holdfast.LockLost) as caught:
        hold.ensure()
    assert caught.value.reason == "released by force"
    await successor.release()
    assert await kit.lock().force_release() is None


@one_primary
async def test_a_foreign_lock_of_redis_py_excludes_and_is_excluded(kit: Kit) -> None:
    """The same key and value format as plain Redlock clients: mutual exclusion both ways."""
    foreign = kit.raw.lock(kit.name, timeout=5)
    assert foreign.acquire(blocking=False)
    assert await kit.lock().try_acquire() is None
    began = _now()
    waiting = kit.spawn(kit.lock().acquire(wait=5))
    await kit.sleep(0.1)
    foreign.release()
    hold = await waiting.wait()
    assert _now() - began < 1.5  # nobody told us: found by looking
    assert not kit.raw.lock(kit.name, timeout=5).acquire(blocking=False)
    await hold.release()
    assert foreign.acquire(blocking=False)
    foreign.release()


async def test_a_key_of_another_type_is_a_clear_error(kit: Kit) -> None:
    """The name belongs to something else: a usage error that says so, and the value is untouched."""
    kit.raw.rpush(kit.name, "a", "b")
    with pytest.raises(holdfast.UsageError, match="another kind of value"):
        await kit.lock().acquire(wait=0)
    assert kit.raw.lrange(kit.name, 0, -1) == [b"a", b"b"]
    kit.raw.delete(kit.name)


@pytest.mark.parametrize(
    "name",
    [
        "a:b:c",
        "{tag}lock",
        "pre{tag}post",
        "{}odd",
        "a}b",
        "a{b",
        "ünï-☃",
        "{a}{b}",
        "}{",
        "x{}y{z}",
    ],
)
async def test_any_name_works_with_all_its_keys_in_one_slot(kit: Kit, name: str) -> None:
    """Colons, braces and unicode, on a cluster too, waiting included. Cases 59, T24."""
    name = f"{name}:{kit.name}"
    hold = await kit.lock(name).acquire()
    waiting = kit.spawn(kit.lock(name).acquire(wait=5))
    await kit.eventually(lambda: kit.raw.zcard(aux(name, "queue")) == 1)
    await hold.release()
    await (await waiting.wait()).release()
    assert not kit.raw.exists(name)


async def test_partial_helper_keys_do_no_harm(kit: Kit) -> None:
    """Each helper key deleted or filled with rubbish on its own: locks go on. Case T41."""
    for part, rubbish in [("fence", "x"), ("queue", None), ("waiters", None)]:
        hold = await kit.lock().acquire()
        waiting = kit.spawn(kit.lock().acquire(wait=8))
        await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 1)
        kit.raw.delete(aux(kit.name, part))
        if rubbish:
            kit.raw.set(aux(kit.name, part), rubbish, px=60_000)
        await hold.release()
        second = await waiting.wait()
        assert second.fence > hold.fence
        await second.release()
