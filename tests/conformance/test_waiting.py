"""Waiting: in line, woken by a message, found by looking, bounded, and gone when given up."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

import holdfast
from holdfast.core.keys import aux
from holdfast.locks.lock import CLAIM_MS
from tests.support.kit import Kit, one_primary

WINDOW = CLAIM_MS / 1000


def queue(kit: Kit) -> int:
    """How many wait for the test's lock."""
    return int(kit.raw.zcard(aux(kit.name, "queue")))


@one_primary
async def test_waiters_are_served_in_the_order_they_came(kit: Kit) -> None:
    """First in, first out over several waiters; nobody barges in between. Case 16."""
    hold = await kit.lock().acquire()
    served: list[int] = []

    async def waiter(number: int) -> None:
        async with kit.lock(wait=20):
            served.append(number)

    flows = []
    for number in range(6):
        flows.append(kit.spawn(waiter(number)))
        await kit.eventually(lambda: queue(kit) == number + 1)  # noqa: B023
    await hold.release()
    for flow in flows:
        await flow.wait()
    assert served == sorted(served)


@one_primary
async def test_a_newcomer_does_not_overtake_the_woken_waiter(kit: Kit) -> None:
    """Between release and claim the lock is reserved: try_acquire gets nothing. Case 16."""
    stranger = kit.connect()
    for _ in range(20):
        hold = await kit.lock().acquire()
        waiting = kit.spawn(kit.lock().acquire(wait=10))
        await kit.eventually(lambda: queue(kit) == 1)
        await hold.release()
        assert await stranger.lock(kit.name).try_acquire() is None
        await (await waiting.wait()).release()


async def test_a_release_wakes_the_waiter_at_once(kit: Kit) -> None:
    """Woken by a message, not found by the next look. Cases 1, B24, T25."""
    waits = []
    for _ in range(5):
        hold = await kit.lock().acquire()
        waiting = kit.spawn(kit.lock().acquire(wait=10))
        await kit.eventually(lambda: queue(kit) == 1)
        await kit.sleep(0.05)
        began = time.monotonic()
        await hold.release()
        second = await waiting.wait()
        waits.append(time.monotonic() - began)
        await second.release()
    assert min(waits) < 0.1, waits


async def test_a_holder_that_vanished_is_waited_for_one_lease(kit: Kit) -> None:
    """No release, no message: the waiter has the lock when the TTL ends. Cases 18, B15, T27."""
    gone = await kit.lock(lease=0.5, renew=False).acquire()
    began = time.monotonic()
    hold = await kit.lock().acquire(wait=10)
    assert 0.3 < time.monotonic() - began < 1.5
    await hold.release()
    with pytest.raises(holdfast.LockLost):
        await gone.release()


async def test_a_wait_may_be_longer_than_the_lease(kit: Kit) -> None:
    """The holder renews, the waiter waits on: patience has nothing to do with leases. 19, 21."""
    hold = await kit.lock(lease=0.3).acquire()
    waiting = kit.spawn(kit.lock(lease=0.3).acquire(wait=10))
    await kit.sleep(1.0)
    assert not waiting.done()
    hold.ensure()
    await hold.release()
    second = await waiting.wait()
    await second.release()


@pytest.mark.parametrize(("lease", "wait"), [(0.05, 3), (0.2, 3), (3, 0.2), (0.5, 0.5), (30, 3)])
async def test_no_combination_of_lease_and_wait_gives_two_holders(
    kit: Kit, lease: float, wait: float
) -> None:
    """Short leases with long waits and the other way round exclude all the same. Cases 58, T69."""
    inside: list[int] = []
    overlaps = 0
    lock = kit.lock(lease=lease, wait=wait, on_lost="ignore")

    async def flow(number: int) -> None:
        nonlocal overlaps
        for _ in range(4):
            try:
                hold = await lock.acquire()
            except holdfast.LockTimeout:
                continue
            overlaps += bool(inside)
            inside.append(number)
            await kit.sleep(0.004)
            certain = hold.remaining() > 0
            inside.remove(number)
            assert certain or lease < 0.1
            try:
                await hold.release()
            except holdfast.LockLost:
                assert lease < 0.1  # a slow machine needs longer than 50 ms

    flows = [kit.spawn(flow(number)) for number in range(3)]
    for running in flows:
        await running.wait()
    assert overlaps == 0


async def test_a_deleted_key_is_noticed(kit: Kit) -> None:
    """DEL by an administrator announces nothing: the waiter finds out by looking. Case T28."""
    hold = await kit.lock().acquire()
    await kit.held_everywhere(hold)  # or the DEL there could hit the successor's key
    waiting = kit.spawn(kit.lock().acquire(wait=10))
    await kit.eventually(lambda: queue(kit) == 1)
    began = time.monotonic()
    kit.raw.delete(kit.name)
    second = await waiting.wait()
    assert time.monotonic() - began < 1.5
    assert second.fence > hold.fence
    await second.release()
    with pytest.raises(holdfast.LockLost):
        await hold.release()


async def test_a_try_or_a_timeout_leaves_no_queue_entry(kit: Kit) -> None:
    """Whoever gave up is not in the line, and owns nothing later. Case T37."""
    hold = await kit.lock().acquire()
    assert await kit.lock().try_acquire() is None
    assert queue(kit) == 0
    with pytest.raises(holdfast.LockTimeout):
        await kit.lock().acquire(wait=0.1)
    assert queue(kit) == 0
    await hold.release()
    assert not kit.raw.exists(kit.name)


async def test_the_whole_wait_is_used(kit: Kit) -> None:
    """A lock that comes free late in the wait is still taken. Case B10."""
    hold = await kit.lock().acquire()
    waiting = kit.spawn(kit.lock().acquire(wait=0.9))
    await kit.sleep(0.6)
    await hold.release()
    second = await waiting.wait()
    await second.release()


async def test_the_last_look_is_at_the_deadline(kit: Kit) -> None:
    """A foreign holder that deletes without a word just before the end: still found. Case B10."""
    kit.raw.set(kit.name, "stranger", px=30_000)
    waiting = kit.spawn(kit.lock().acquire(wait=0.7))
    await kit.sleep(0.55)
    kit.raw.delete(kit.name)
    second = await waiting.wait()
    await second.release()


async def test_a_stated_wait_never_ends_at_once(kit: Kit) -> None:
    """A wait of 7.5 s on a held lock is still waiting after the first looks. Case T32."""
    hold = await kit.lock().acquire()
    waiting = kit.spawn(kit.lock().acquire(wait=7.5))
    await kit.sleep(1.2)
    assert not waiting.done()
    kit.raw.set(kit.name, "stranger", px=100)  # the holder loses it: no signal reaches the waiter
    second = await waiting.wait()
    await second.release()
    with pytest.raises(holdfast.LockLost):
        await hold.release()


@one_primary
async def test_a_dead_waiter_at_the_head_costs_one_claim_window(kit: Kit) -> None:
    """A waiter that will never come is passed over after its window. Cases 71, T38."""
    hold = await kit.lock().acquire()
    _dead_waiters(kit, "holdfast:inbox:dead", 1)
    waiting = kit.spawn(kit.lock().acquire(wait=20))
    await kit.eventually(lambda: queue(kit) == 2)
    began = time.monotonic()
    await hold.release()
    second = await waiting.wait()
    assert WINDOW * 0.9 < time.monotonic() - began < WINDOW + 1.2
    await second.release()


@one_primary
async def test_a_killed_process_costs_one_window_however_many_waited_in_it(kit: Kit) -> None:
    """Ten waiters of one dead inbox cost one claim window together, not ten. Case T38."""
    hold = await kit.lock().acquire()
    _dead_waiters(kit, "holdfast:inbox:dead", 10)
    waiting = kit.spawn(kit.lock().acquire(wait=20))
    await kit.eventually(lambda: queue(kit) == 11)
    began = time.monotonic()
    await hold.release()
    second = await waiting.wait()
    assert time.monotonic() - began < WINDOW + 1.2  # ten windows would be 20 s
    await second.release()


def _dead_waiters(kit: Kit, inbox: str, count: int) -> None:
    """Queue waiters in the format of locks/lock.py that will never be heard of again."""
    now = int(time.time() * 1000)  # the servers of the tests share this machine's clock
    for number in range(count):
        kit.raw.zadd(aux(kit.name, "queue"), {f"dead-{number}": number - 100})
        record = f"{now + 60_000} {now} 30000 {inbox} {now + 30_000}"
        kit.raw.hset(aux(kit.name, "waiters"), f"wdead-{number}", record)
    for part in ("queue", "waiters"):
        kit.raw.pexpire(aux(kit.name, part), 90_000)


async def test_a_crashed_holder_costs_its_lease_however_many_wait(kit: Kit) -> None:
    """Steady turns, then a holder that never releases: the next comes when its lease is over. T27."""
    count, crash, lease = 12, 7, 0.5
    first = await kit.lock(lease=5).acquire()
    granted: list[float] = []
    kept: list[object] = []

    async def waiter(number: int) -> None:
        hold = await kit.lock(lease=lease, renew=False, on_lost="ignore").acquire(wait=20)
        granted.append(time.monotonic())
        if number == crash:
            kept.append(hold)  # neither released nor collected: as good as crashed
        else:
            await hold.release()

    flows = []
    for number in range(count):
        flows.append(kit.spawn(waiter(number)))
        await kit.eventually(lambda: queue(kit) == number + 1)  # noqa: B023
    await first.release()
    for flow in flows:
        await flow.wait()
    gaps = [later - earlier for earlier, later in pairwise(sorted(granted))]
    assert lease - 0.1 < max(gaps) < lease + 0.4, gaps


@one_primary
async def test_a_live_waiter_keeps_its_place_beyond_its_patience_record(kit: Kit) -> None:
    """The record's deadline is refreshed by every look: who lives stays in line. Case T39."""
    hold = await kit.lock(lease=2).acquire()
    waiting = kit.spawn(kit.lock().acquire(wait=30))
    await kit.eventually(lambda: queue(kit) == 1)
    key = aux(kit.name, "waiters")
    seen = []
    for _ in range(3):
        seen.append(next(v for k, v in kit.raw.hgetall(key).items() if k.startswith(b"w")))
        await kit.sleep(0.7)
    deadlines = [int(record.split()[0]) for record in seen]
    assert all(later > earlier for earlier, later in pairwise(deadlines))
    await hold.release()
    await (await waiting.wait()).release()


@one_primary
async def test_a_reservation_nobody_claims_is_passed_on_when_its_owner_leaves(kit: Kit) -> None:
    """A waiter that gives up while the lock is reserved for it hands it to the next. Case T34."""
    hold = await kit.lock().acquire()
    _dead_waiters(kit, "holdfast:inbox:dead", 1)
    await hold.release()
    assert kit.owner() == "dead-0"
    waiting = kit.spawn(kit.lock().acquire(wait=10))
    await kit.eventually(lambda: queue(kit) == 1)
    began = time.monotonic()
    await _leave(kit, "dead-0")
    second = await waiting.wait()
    assert time.monotonic() - began < 0.5
    await second.release()


@one_primary
async def test_a_woken_waiter_that_gives_up_passes_the_wake_on(kit: Kit) -> None:
    """Told, and its time is over before it looks: the next has the lock at once. Case T34."""
    hold = await kit.lock().acquire()
    deaf = kit.connect()
    _subscribe_elsewhere(getattr(deaf, "blocking", deaf))  # it will not hear that it is its turn
    first = kit.spawn(deaf.lock(kit.name).acquire(wait=0.6))
    await kit.eventually(lambda: queue(kit) == 1)
    second = kit.spawn(kit.lock().acquire(wait=10))
    await kit.eventually(lambda: queue(kit) == 2)
    await kit.sleep(0.3)
    began = time.monotonic()
    await hold.release()
    try:
        got = await first.wait()
    except holdfast.LockTimeout:
        pass
    else:
        await got.release()  # its last look at the end of its time found the reservation
    held = await second.wait()
    assert time.monotonic() - began < 1.0
    await held.release()


async def test_what_happens_before_the_subscription_is_live_is_not_missed(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released after the first look, and before anybody listens: looked again at once. 17, T25."""
    hf = kit.connect()
    runtime = getattr(hf, "blocking", hf)._rt
    hold = await kit.lock().acquire()
    opened = runtime._open_inboxes
    in_between: list[float] = []

    def release_now() -> None:
        if not in_between:
            in_between.append(time.monotonic())
            if kit.deployment.members:
                for raw in kit.raw.clients:
                    raw.delete(kit.name)
            else:
                kit.raw.delete(kit.name)

    if kit.colour == "asyncio":

        async def opens() -> object:
            release_now()
            return await opened()
    else:

        def opens() -> object:  # type: ignore[misc]
            release_now()
            return opened()

    monkeypatch.setattr(runtime, "_open_inboxes", opens)
    held = await hf.lock(kit.name).acquire(wait=10)
    assert in_between
    assert time.monotonic() - in_between[0] < 0.4, "found by the next look"
    await held.release()
    await kit.end(hold)


async def _leave(kit: Kit, owner: str) -> None:
    lock = kit.lock()
    protocol = lock if kit.colour == "asyncio" else lock.blocking._lock
    await protocol._withdraw(owner)


async def test_every_waiter_gets_a_turn_when_no_message_arrives(kit: Kit) -> None:
    """All wake-ups dropped: looking alone serves everybody in bounded time. Cases 17, T26."""
    deaf = kit.connect()
    inner = getattr(deaf, "blocking", deaf)
    hold = await deaf.lock(kit.name).acquire()

    async def turn() -> None:
        async with deaf.lock(kit.name, wait=30):
            pass

    _subscribe_elsewhere(inner)
    flows = [kit.spawn(turn()) for _ in range(4)]
    await kit.eventually(lambda: queue(kit) == 4)
    began = time.monotonic()
    await hold.release()
    for flow in flows:
        await flow.wait()
    assert time.monotonic() - began < 4 * (WINDOW + 0.5)


def _subscribe_elsewhere(client: object) -> None:
    """Make the client's mailboxes unreachable: every message it is sent is lost."""
    client._rt._mailboxes = _Blackhole()  # type: ignore[attr-defined]


class _Blackhole(dict):  # type: ignore[type-arg]
    """Forgets every mailbox, so no message ever finds its waiter."""

    def get(self, key: object, default: object = None) -> None:
        return None


async def test_a_thousand_names_use_few_connections(kit: Kit) -> None:
    """Contention on many names needs one inbox, not a subscription each. Cases T29, T31."""
    count = kit.many(60, 1_000) if kit.colour == "asyncio" else 60
    before = len(kit.raw.client_list()) if kit.deployment.server is not None else 0
    hold = [await kit.lock(f"{kit.name}-{n}").acquire() for n in range(count)]
    flows = [kit.spawn(kit.lock(f"{kit.name}-{n}").acquire(wait=20)) for n in range(count)]
    for number in range(count):
        queue_of_it = aux(f"{kit.name}-{number}", "queue")
        await kit.eventually(lambda key=queue_of_it: kit.raw.zcard(key) == 1, 15)  # type: ignore[misc]
    if kit.colour == "asyncio" and kit.deployment.server is not None:
        assert len(kit.raw.client_list()) - before <= 8
    client = getattr(kit.hf, "blocking", kit.hf)
    inbox = client._rt.inbox
    if kit.deployment.cluster is None:
        name = inbox.encode()
        await kit.eventually(lambda: dict(kit.raw.pubsub_numsub(inbox))[name] == 1)
    for held in hold:
        await held.release()
    for flow in flows:
        await (await flow.wait()).release()
    assert not client._rt._mailboxes
    await kit.hf.close()
    if kit.deployment.cluster is None:
        await kit.eventually(lambda: dict(kit.raw.pubsub_numsub(inbox))[name] == 0)
