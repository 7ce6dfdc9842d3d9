"""Servers that restart, forget, fail over, move slots, refuse and freeze; and replicas that confirm."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.core.keys import aux, slot
from holdfast.server import Server
from tests.conftest import BINARIES
from tests.support.kit import COLOURS, Deployment, Kit, plain
from tests.support.topologies import start_cluster, start_sentinel_pair

pytestmark = pytest.mark.timeout(120)
OWN_KIT = True


def kit_on(colour: str, deployment: Deployment, name: str) -> Kit:
    return COLOURS[colour](deployment, name, colour)


@pytest.fixture(params=list(COLOURS))
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kit(colour: str, name: str) -> Iterator[Kit]:
    """A kit on a server of its own, which the test may mistreat."""
    with Server(BINARIES[0]) as server:
        made = kit_on(
            colour, Deployment("own", server.url, lambda: plain(server.url), server=server), name
        )
        yield made
        made.raw.close()


async def test_script_flush_at_any_time_is_invisible(kit: Kit) -> None:
    """While free, held, waited for and renewed: scripts are loaded again. Cases 56, T57."""
    lock = kit.lock(lease=0.6)
    for _ in range(3):
        hold = await lock.acquire(wait=3)
        waiting = kit.spawn(kit.lock().acquire(wait=10))
        await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 1)
        kit.raw.script_flush()
        await kit.sleep(0.7)
        kit.raw.script_flush()
        hold.ensure()
        await hold.extend(1)
        kit.raw.script_flush()
        await hold.release()
        second = await waiting.wait()
        kit.raw.script_flush()
        await second.release()


async def test_a_restarted_server_is_used_again_and_holds_are_lost(kit: Kit) -> None:
    """Restart without persistence: the hold notices, new work reconnects by itself. 56, T33, 47."""
    hold = await kit.lock(lease=1, on_lost="ignore").acquire()
    kit.deployment.server.restart()
    await kit.eventually(hold.lost.is_set, 2)
    second = await kit.lock().acquire(wait=3)
    assert second.fence > hold.fence
    await second.release()


async def test_a_restart_that_keeps_the_keys_is_invisible(kit: Kit) -> None:
    """An append-only file: the hold goes on over the restart, and is renewed after it. Case 56."""
    with Server(persistent=True) as own:
        hf = kit.connect(own.url)
        hold = await hf.lock(kit.name, lease=3).acquire()
        own.restart()
        await kit.sleep(3.5)
        hold.ensure()
        assert await hf.lock(kit.name).try_acquire() is None
        await hold.release()


async def test_after_an_outage_longer_than_the_lease_a_new_hold_is_renewed(kit: Kit) -> None:
    """The old one is lost, and the keeper goes on for the next: held over several leases. T07."""
    with Server() as own:
        hf = kit.connect(own.url, timeout=0.3)
        lost = await hf.lock(kit.name, lease=0.8, on_lost="ignore").acquire()
        own.pause()
        await kit.sleep(1.5)
        assert lost.is_lost()
        own.resume()
        hold = await hf.lock(kit.name, lease=0.8).acquire(wait=5)
        await kit.sleep(2.5)
        hold.ensure()
        await hold.release()
        await kit.end(lost)


async def test_waiters_survive_a_restart(kit: Kit) -> None:
    """The queue was lost with the server: waiters queue up again and are served. Case T33."""
    gone = await kit.lock(lease=20, on_lost="ignore").acquire()
    done: list[int] = []

    async def waiter(number: int) -> None:
        async with kit.lock(wait=20):
            done.append(number)

    flows = [kit.spawn(waiter(number)) for number in range(4)]
    await kit.eventually(lambda: kit.raw.zcard(aux(kit.name, "queue")) == 4)
    kit.deployment.server.restart()
    for flow in flows:
        await flow.wait()
    assert len(done) == 4
    with pytest.raises(holdfast.LockLost):
        await gone.release()


async def test_fences_grow_across_flushall_and_restart(kit: Kit) -> None:
    """The counter is lost, the order is not: time is its floor. Cases 63, T80."""
    fences = []
    for step in range(4):
        hold = await kit.lock(wait=3).acquire()
        fences.append(hold.fence)
        await hold.release()
        if step == 1:
            kit.raw.flushall()
        if step == 2:
            kit.deployment.server.restart()
    assert fences == sorted(set(fences))
    assert 0 < kit.raw.pttl(aux(kit.name, "fence")) <= 24 * 3600 * 1000


async def test_a_fence_belongs_to_its_hold(kit: Kit) -> None:
    """A stale holder that asks for its fence gets its own; extending keeps it. T80, T81."""
    hold = await kit.lock(lease=0.1, renew=False, on_lost="ignore").acquire()
    fence = hold.fence
    await kit.sleep(0.12)
    newer = await kit.lock().acquire(wait=2)
    assert hold.fence == fence < newer.fence
    before = newer.fence
    await newer.extend(50)
    assert newer.fence == before
    await newer.release()


async def test_a_frozen_server_ends_in_unavailable_within_bounds(kit: Kit) -> None:
    """SIGSTOP: acquire, try and the end of a block are bounded; afterwards all is well. Case 36."""
    hf = kit.connect(timeout=0.4)
    hold = await hf.lock(f"{kit.name}-held", lease=30).acquire()
    kit.deployment.server.pause()
    try:
        for wait in (0, 0.2):
            began = time.monotonic()
            with pytest.raises(holdfast.Unavailable):
                await hf.lock(kit.name).acquire(wait=wait)
            assert time.monotonic() - began < 3
        began = time.monotonic()
        with pytest.raises(holdfast.Unavailable):
            await hold.release()
        assert time.monotonic() - began < 2
    finally:
        kit.deployment.server.resume()
    await kit.sleep(0.2)
    await hold.release()
    async with hf.lock(kit.name, wait=3):
        pass


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), "OOM"),
        (("REPLICAOF", "127.0.0.1", "1"), "READONLY|MASTERDOWN"),
        (("CONFIG", "SET", "min-replicas-to-write", "3"), "NOREPLICAS"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
async def test_a_server_that_refuses_says_why(
    kit: Kit, trouble: tuple[str, ...], says: str
) -> None:
    """OOM, READONLY, NOREPLICAS: Unavailable, surely not acted, with the server's word. Case 5."""
    kit.raw.execute_command(*trouble)
    began = time.monotonic()
    with pytest.raises(holdfast.NodeError, match=says) as caught:
        await kit.lock(wait=0).acquire()
    assert not caught.value.sent
    assert time.monotonic() - began < 2
    assert not kit.raw.exists(kit.name)


# ── replicas ───────────────────────────────────────────────────────────────────────────────────


async def test_acks_without_replicas_fail_closed_and_leave_nothing(kit: Kit) -> None:
    """One replica asked, none there: NotReplicated, and the lock is free at once. Cases 62, T53."""
    for acks in (1, "all"):
        with pytest.raises(holdfast.NotReplicated) as caught:
            await kit.connect(timeout=0.4).lock(kit.name, acks=acks).acquire(wait=0)
        assert (caught.value.wanted, caught.value.got) == (1, 0)
        assert not kit.raw.exists(kit.name)
    async with kit.lock(wait=0):
        pass


async def test_acks_on_a_taken_lock_are_not_asked_for(kit: Kit) -> None:
    """Nothing was written, so nothing can be confirmed: taken is taken. Case 62."""
    async with kit.lock():
        assert await kit.lock(acks=1).try_acquire() is None


async def test_acks_are_given_by_replicas_and_renewals_need_them_too(kit: Kit, colour: str) -> None:
    """With its replica the lock is granted; when it stops, renewals do not count. 62, T54."""
    primary = kit.deployment.server
    args = ("--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0")
    with Server(BINARIES[0], args=args) as replica:
        copy = plain(replica.url)
        await kit.eventually(lambda: copy.info("replication")["master_link_status"] == "up", 20)
        hf = kit.connect(timeout=1)
        for acks in (1, "all"):
            async with hf.lock(kit.name, acks=acks, wait=1):
                assert copy.exists(kit.name)
        with pytest.raises(holdfast.NotReplicated):
            await hf.lock(kit.name, acks=2, wait=0).acquire()
        hold = await hf.lock(kit.name, lease=1.5, acks=1, on_lost="ignore").acquire()
        await kit.sleep(2)
        hold.ensure()
        replica.pause()
        stopped = time.monotonic()
        await kit.eventually(hold.lost.is_set, 3)
        assert time.monotonic() - stopped < 1.6
        replica.resume()
        with pytest.raises(holdfast.LockLost):
            await hold.release()
        copy.close()


@pytest.mark.parametrize("acks", [None, 1])
def test_a_sentinel_failover_is_survived(colour: str, name: str, acks: int | None) -> None:
    """Primary killed: new work finds the new primary by itself; waiters are served. T33, 61."""
    with start_sentinel_pair(BINARIES[0]) as pair:
        deployment = Deployment("pair", pair.url, lambda: plain(pair.replica.url), sentinel=pair)
        kit = kit_on(colour, deployment, name)

        async def story() -> None:
            held = await kit.lock(lease=3, acks=acks, on_lost="ignore").acquire()
            waiting = kit.spawn(_until_granted(kit))
            await kit.sleep(0.3)
            pair.primary.kill()
            await (await _granted_within(kit, 20, f"{name}-other")).release()
            # The replica had the lock, so the hold lives on there; unless its renewals asked for the
            # confirmation of a replica that does not exist any more for longer than its lease.
            try:
                await held.release()
            except holdfast.LockLost:
                assert acks == 1
            assert await waiting.wait() > held.fence

        kit.execute(story)
        kit.raw.close()


async def _until_granted(kit: Kit) -> int:
    """Waiting bridges an outage of 5 s; a longer one is reported, and a user asks again."""
    while True:
        try:
            hold = await kit.lock(wait=20).acquire()
        except holdfast.Unavailable:
            continue
        await hold.release()
        return int(hold.fence)


# ── cluster ────────────────────────────────────────────────────────────────────────────────────


def test_slots_that_move_are_followed(colour: str, name: str) -> None:
    """A held lock's slot moves (ASK meanwhile, MOVED after): extend, renew, wait, release. 56, T33."""
    with start_cluster(BINARIES[0]) as cluster:
        import redis

        port = cluster.nodes[0].port
        deployment = Deployment(
            "cluster", cluster.url, lambda: redis.RedisCluster(host="127.0.0.1", port=port),
            cluster=cluster,
        )  # fmt: skip
        kit = kit_on(colour, deployment, name)

        async def story() -> None:
            hold = await kit.lock(lease=1.2).acquire()
            number = slot(name)
            source = cluster.owner_of(number)
            target = (source + 1) % 3
            cluster.begin_move(number, source, target)
            # A lock that is not there yet needs several keys: the cluster turns it away (TRYAGAIN)
            # until the slot has moved. Nothing was done, and it says so.
            with pytest.raises(holdfast.NodeError, match=r"TRYAGAIN|ASK") as caught:
                await kit.lock(f"{{{name}}}:other").acquire(wait=0.3)
            assert not caught.value.sent
            cluster.migrate_keys(number, source, target)
            hold.ensure()
            await hold.extend(2)
            await kit.sleep(2.5)  # renewed on the new node while the old one still has the slot
            hold.ensure()
            waiting = kit.spawn(kit.lock().acquire(wait=10))
            await kit.sleep(0.3)
            cluster.finish_move(number, source, target)
            await kit.sleep(1.5)
            hold.ensure()
            await hold.release()
            await (await waiting.wait()).release()

        kit.execute(story)
        kit.raw.close()


def test_a_cluster_failover_is_survived(colour: str, name: str) -> None:
    """The slot's primary dies, its replica takes over: the client finds it by itself. T33."""
    with start_cluster(BINARIES[0], replicas=1) as cluster:
        deployment = Deployment("cluster", cluster.url, lambda: plain(cluster.nodes[0].url))
        kit = kit_on(colour, deployment, name)

        async def story() -> None:
            await (await kit.lock().acquire()).release()
            victim = cluster.owner_of(slot(name))
            cluster.nodes[victim].kill()
            hold = await _granted_within(kit, 20)
            await hold.release()

        kit.execute(story)
        kit.raw.close()


async def _granted_within(kit: Kit, seconds: float, name: str | None = None) -> holdfast.Hold:
    ends = time.monotonic() + seconds
    while True:
        try:
            return await kit.lock(name, wait=5).acquire()  # type: ignore[no-any-return]
        except holdfast.Unavailable:
            assert time.monotonic() < ends
