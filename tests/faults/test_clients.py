"""What can be connected to: URLs and clients of redis-py and valkey-py, TLS, ACL, RESP2 and RESP3."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio
import valkey.asyncio.cluster
import valkey.asyncio.sentinel
import valkey.sentinel

import holdfast
import holdfast.aio
from holdfast import events
from holdfast.core.keys import aux
from holdfast.core.script import Call, Script
from holdfast.locks.lock import RELEASE
from holdfast.server import Server, ServerBinary
from holdfast.wire.replies import pack
from tests.conftest import Fleet
from tests.support.kit import plain
from tests.support.topologies import make_certificates, tls_binary, tls_server


def blocking_story(hf: holdfast.Client, name: str, raw: Any) -> None:
    """Acquire, extend, wait, be woken, release, look, force: what must work with every client."""
    waits: list[float] = []
    for _ in range(3):
        hold = hf.lock(name, lease=5).acquire()
        hold.extend(20)
        assert hf.lock(name).try_acquire() is None

        got: list[float] = []

        def waiter(got: list[float] = got) -> None:
            with hf.lock(name, wait=10):
                got.append(time.monotonic())

        thread = threading.Thread(target=waiter)
        thread.start()
        while raw.zcard(aux(name, "queue")) == 0:
            time.sleep(0.002)
        time.sleep(0.1)
        released = time.monotonic()
        hold.release()
        thread.join()
        waits.append(got[0] - released)
        if waits[-1] < 0.3:
            break
    assert min(waits) < 0.3, "it was found by looking, not woken"
    forced = hf.lock(name).acquire()
    assert hf.lock(name).info().holder == hf.lock(name).force_release() == forced.owner
    with pytest.raises(holdfast.LockLost, match="by force"):
        forced.release()
    assert is_gone(raw, name)


def is_gone(raw: Any, name: str) -> bool:
    """Whether the key is gone, or goes soon: of several nodes one may be told a little later."""
    ends = time.monotonic() + 1.0
    while raw.exists(name) and time.monotonic() < ends:
        time.sleep(0.002)
    return not raw.exists(name)


async def asyncio_story(hf: holdfast.aio.Client, name: str, raw: Any) -> None:
    """The same for asyncio."""
    waits: list[float] = []
    for _ in range(3):
        hold = await hf.lock(name, lease=5).acquire()
        await hold.extend(20)
        assert await hf.lock(name).try_acquire() is None
        task = asyncio.create_task(hf.lock(name).acquire(wait=10))
        while raw.zcard(aux(name, "queue")) == 0:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.1)
        released = time.monotonic()
        await hold.release()
        second = await task
        waits.append(time.monotonic() - released)
        await second.release()
        if waits[-1] < 0.3:
            break
    assert min(waits) < 0.3, "it was found by looking, not woken"
    forced = await hf.lock(name).acquire()
    found = await hf.lock(name).info()
    assert found.holder == await hf.lock(name).force_release() == forced.owner
    with pytest.raises(holdfast.LockLost, match="by force"):
        await forced.release()
    assert await asyncio.to_thread(is_gone, raw, name)


def libraries(test: Any) -> Any:
    """Both client libraries, with the ways of speaking that differ most."""
    ways = [
        pytest.param({"decode_responses": False, "protocol": 2}, id="bytes-resp2"),
        pytest.param({"decode_responses": True, "protocol": 3}, id="decoded-resp3"),
    ]
    both = pytest.mark.parametrize("library", [redis, valkey], ids=["redis-py", "valkey-py"])
    return both(pytest.mark.parametrize("options", ways)(test))


@pytest.mark.parametrize("library", [redis, valkey], ids=["redis-py", "valkey-py"])
@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
def test_existing_clients_behave_the_same(
    server: Server, raw: redis.Redis, name: str, library: Any, decode: bool, protocol: int
) -> None:
    """decode_responses on and off, RESP2 and RESP3, both libraries, both faces. Cases 1, B24."""
    options = {"port": server.port, "decode_responses": decode, "protocol": protocol}
    lent = library.Redis(**options)
    with holdfast.connect(lent) as hf:
        blocking_story(hf, name, raw)
    assert lent.ping()  # the client that was lent goes on working
    lent.close()

    async def main() -> None:
        lent = library.asyncio.Redis(**options)
        async with holdfast.aio.connect(lent) as hf:
            await asyncio_story(hf, f"{name}-aio", raw)
        assert await lent.ping()
        await lent.aclose()

    asyncio.run(main())


def test_a_client_with_retries_and_short_timeouts_waits_longer(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """A wait beyond the client's socket_timeout ends on time, with the right error. 20, B14."""
    lent = redis.Redis(port=server.port, socket_timeout=0.2)
    with holdfast.connect(lent) as hf, holdfast.connect(server.url) as other:
        with other.lock(name):
            began = time.monotonic()
            with pytest.raises(holdfast.LockTimeout):
                hf.lock(name).acquire(wait=1.0)
            assert 0.95 < time.monotonic() - began < 1.8
        with hf.lock(name, wait=1):
            pass
    lent.close()


def test_a_blocking_timeout_is_never_sent(server: Server, raw: redis.Redis, name: str) -> None:
    """No BLPOP and no blocking reads: nothing that could round to "for ever". Cases 11, B15."""
    raw.config_resetstat()
    with holdfast.connect(server.url) as hf, hf.lock(name):
        for wait in (0.001, 0.0005, 0.02):
            with pytest.raises(holdfast.LockTimeout):
                hf.lock(name).acquire(wait=wait)
    used = {key.removeprefix("cmdstat_") for key in raw.info("commandstats")}
    assert not used & {"blpop", "brpop", "blmove", "bzpopmin", "xread", "xreadgroup", "wait"}


def test_the_database_of_the_url_is_used(server: Server, name: str) -> None:
    """redis://…/3 and ?db=3 lock in database 3, not in 0."""
    three = redis.Redis(port=server.port, db=3)
    zero = redis.Redis(port=server.port)
    for url in (f"redis://127.0.0.1:{server.port}/3", f"unix://{server.socket}?db=3"):
        with holdfast.connect(url) as hf, hf.lock(name):
            assert three.exists(name)
            assert not zero.exists(name)
    three.close()
    zero.close()


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_schemes_are_synonyms(server: Server, name: str, scheme: str) -> None:
    """valkey:// is redis://."""
    with holdfast.connect(f"{scheme}://127.0.0.1:{server.port}") as hf, hf.lock(name) as hold:
        assert hold.remaining() > 0


def test_embedded_starts_a_real_server_shared_in_the_process(name: str) -> None:
    """Two clients of "embedded:" meet on one server; it ends with the last of them."""
    with holdfast.connect("embedded:") as one:
        with holdfast.connect("embedded:") as two, one.lock(name):
            assert two.lock(name).try_acquire() is None

        async def main() -> None:
            async with holdfast.aio.connect("embedded:") as three:
                hold = await three.lock(name).try_acquire()
                assert hold is not None
                await hold.release()

        asyncio.run(main())
        with one.lock(name):
            pass


@libraries
def test_clients_made_by_sentinel(fleet: Fleet, name: str, library: Any, options: Any) -> None:
    """`master_for` of either library and colour, however it decodes and speaks. Case 60."""
    pair = fleet.get("sentinel").sentinel
    raw = fleet.get("sentinel").raw()
    made = library.sentinel.Sentinel(pair.sentinels).master_for(pair.name, **options)
    with holdfast.connect(made) as hf:
        blocking_story(hf, name, raw)

    async def main() -> None:
        sentinel = library.asyncio.sentinel.Sentinel(pair.sentinels)
        primary = sentinel.master_for(pair.name, **options)
        async with holdfast.aio.connect(primary) as hf:
            await asyncio_story(hf, f"{name}-aio", raw)
        await primary.aclose()
        for client in sentinel.sentinels:
            await client.aclose()

    asyncio.run(main())
    made.close()
    raw.close()


@libraries
def test_clients_of_a_cluster(fleet: Fleet, name: str, library: Any, options: Any) -> None:
    """The cluster clients of either library and colour, however they decode and speak. 59, 60."""
    deployment = fleet.get("cluster")
    where = {"host": "127.0.0.1", "port": deployment.cluster.nodes[0].port, **options}
    raw = deployment.raw()
    kind = "RedisCluster" if library is redis else "ValkeyCluster"
    with getattr(library, kind)(**where) as lent, holdfast.connect(lent) as hf:
        blocking_story(hf, name, raw)

    async def main() -> None:
        lent = getattr(library.asyncio.cluster, kind)(**where)
        async with holdfast.aio.connect(lent) as hf:
            await asyncio_story(hf, f"{name}-aio", raw)
        await lent.aclose()

    asyncio.run(main())
    raw.close()


def test_tls_works_and_is_verified(tmp_path: Path, name: str) -> None:
    """rediss:// with a CA of one's own; without it the connection is refused, not downgraded."""
    binary = tls_binary()
    if binary is None:
        pytest.skip("no server with TLS at hand (Debian's redis-server has it)")
    certs = make_certificates(tmp_path)
    with tls_server(binary, certs) as server:
        trusted = f"{server.url}?ssl_ca_certs={certs.ca}"
        raw = redis.Redis.from_url(trusted)
        with holdfast.connect(trusted) as hf:
            blocking_story(hf, name, raw)

        async def main() -> None:
            async with holdfast.aio.connect(trusted) as hf:
                await asyncio_story(hf, f"{name}-aio", raw)

        asyncio.run(main())
        for library in (redis, valkey):  # and a client of the user's, with the same certificate
            kind = "Redis" if library is redis else "Valkey"
            lent = getattr(library, kind)(port=server.port, ssl=True, ssl_ca_certs=str(certs.ca))
            with holdfast.connect(lent) as hf:
                blocking_story(hf, f"{name}-{kind}", raw)
            lent.close()
        with holdfast.connect(server.url) as hf, pytest.raises(holdfast.NodeError) as caught:
            hf.lock(name).acquire(wait=0)
        assert not caught.value.sent
        raw.close()


def documented_rule(page: str, name: str) -> list[str]:
    """The ACL rule that a page prints, for locks whose names begin with `name`."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    (rule,) = re.findall(r"^ACL SETUSER app (on >secret [^`]*)```", text, re.MULTILINE)
    return ["ACL", "SETUSER", "app", *rule.replace("order:", name).split()]


def test_acl_users_need_the_documented_rights_only(binary: ServerBinary, name: str) -> None:
    """A user with the rule of docs/keys.md as it is printed: everything works. Case 60."""
    with Server(binary) as server:
        admin = plain(server.url)
        admin.execute_command(*documented_rule("keys.md", name))
        url = f"redis://app:secret@127.0.0.1:{server.port}/0"
        with holdfast.connect(url) as hf:
            blocking_story(hf, name, admin)

        async def main() -> None:
            async with holdfast.aio.connect(url) as hf:
                await asyncio_story(hf, f"{name}-aio", admin)

        asyncio.run(main())
        wrong = f"redis://app:wrong@127.0.0.1:{server.port}/0"
        with holdfast.connect(wrong) as hf, pytest.raises(holdfast.NodeError) as caught:
            hf.lock(name).acquire(wait=0)
        assert not caught.value.sent
        assert not caught.value.transient
        admin.close()


def test_acl_users_of_several_primaries_need_the_documented_rights_only(
    binary: ServerBinary, name: str
) -> None:
    """The same with the rule of docs/redlock.md, and its right to INFO. Cases 60, T55."""
    with Server(binary) as one, Server(binary) as two, Server(binary) as three:
        servers = [one, two, three]
        for each in servers:
            each.command(*documented_rule("redlock.md", name))
        urls = [f"redis://app:secret@127.0.0.1:{each.port}/0" for each in servers]
        admin = plain(one.url)
        with holdfast.connect(urls) as hf:
            assert set(hf.bootstrap().values()) == {None}
            blocking_story(hf, name, admin)

        async def main() -> None:
            async with holdfast.aio.connect(urls) as hf:
                await asyncio_story(hf, f"{name}-aio", admin)

        asyncio.run(main())
        admin.close()


def test_without_the_right_to_the_channel_waiting_goes_on_by_looking(
    binary: ServerBinary, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No pub/sub for this user: said once as an event and a log record; nobody hangs. T55, T29."""
    with Server(binary) as server:
        admin = plain(server.url)
        admin.execute_command(
            "ACL", "SETUSER", "app", "on", ">s3cret", "~*", "resetchannels", "+@all"
        )
        url = f"redis://app:s3cret@127.0.0.1:{server.port}/0"

        def waited(hf: holdfast.Client) -> float:
            hold = hf.lock(name).acquire()
            timer = threading.Timer(0.2, hold.release)
            timer.start()
            began = time.monotonic()
            hf.lock(name).acquire(wait=10).release()
            timer.join()
            return time.monotonic() - began

        told: list[events.Event] = []
        with caplog.at_level(logging.WARNING, "holdfast"), holdfast.connect(url) as hf:
            hf.subscribe(told.append, [events.InboxFailed])
            assert waited(hf) < 2.5
        assert told
        assert any("inboxfailed" in record.message for record in caplog.records)

        async def main() -> None:
            async with holdfast.aio.connect(url) as hf:
                hold = await hf.lock(name).acquire()
                asyncio.get_running_loop().call_later(
                    0.2, lambda: tasks.append(asyncio.create_task(hold.release()))
                )
                tasks: list[asyncio.Task[None]] = []
                second = await hf.lock(name).acquire(wait=10)
                await second.release()
                await tasks[0]

        asyncio.run(main())
        admin.close()


def test_many_threads_share_one_client(server: Server, raw: redis.Redis, name: str) -> None:
    """One blocking client, 16 threads, few connections, no lost update. Cases 2, 24."""
    counter = {"value": 0}
    with holdfast.connect(server.url) as hf:
        lock = hf.lock(name, wait=60)

        def work() -> None:
            for _ in range(20):
                with lock:
                    value = counter["value"]
                    time.sleep(0.0005)
                    counter["value"] = value + 1

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counter["value"] == 320


def test_scripts_belong_to_their_own_definition() -> None:
    """No cache by class or name: another script of the same name is another script. Case B9."""
    one, two = Script("lock.release", "return 1", int), Script("lock.release", "return 2", int)
    assert one.sha != two.sha
    assert RELEASE.sha not in {one.sha, two.sha}
    peer = SimpleNamespace(run_id="", known=set())
    for _ in range(2):  # whole, then by digest
        assert pack(Call(one, ("k",), (), 1.0), peer) != pack(Call(two, ("k",), (), 1.0), peer)


def test_ten_thousand_holds_are_renewed_in_time(
    server: Server, raw: redis.Redis, name: str
) -> None:
    """One connection, batches, no recursion: all of them still held after two leases. Case T12."""

    async def main() -> None:
        async with holdfast.aio.connect(server.url) as hf:
            before = raw.info("clients")["connected_clients"]
            locks = [hf.lock(f"{name}-{n}", lease=8, on_lost="ignore") for n in range(10_000)]
            holds: list[holdfast.aio.Hold] = []
            for first in range(0, len(locks), 1000):
                holds += await asyncio.gather(*(x.acquire() for x in locks[first : first + 1000]))
            await asyncio.sleep(10)
            assert raw.info("clients")["connected_clients"] <= before + 1
            lost = sum(hold.is_lost() for hold in holds)
            await asyncio.gather(*(hold.release() for hold in holds if not hold.is_lost()))
            assert lost == 0

    asyncio.run(main())


def test_events_tell_the_whole_story(server: Server, name: str) -> None:
    """Acquire, wait, grant, renew, refusal, release: each with its facts. Case 73."""
    told: list[events.Event] = []
    with holdfast.connect(server.url) as hf:
        stop = hf.subscribe(told.append)
        with hf.lock(name, lease=0.6):
            time.sleep(0.5)
            with pytest.raises(holdfast.LockTimeout):
                hf.lock(name).acquire(wait=0.05)
        stop()
        hf.lock(name).acquire().release()
    kinds = [type(event).__name__ for event in told]
    assert kinds[:2] == ["Acquiring", "Granted"]
    assert kinds[-1] == "Released"
    assert {"Renewed", "Waiting", "Refused"} <= set(kinds)
    released = told[-1]
    assert isinstance(released, events.Released)
    assert 0.5 < released.held < 2
    assert {event.name for event in told} == {name}


def test_an_observer_that_raises_changes_nothing(server: Server, name: str) -> None:
    """Observing must never break a lock."""

    def broken(_: events.Event) -> None:
        raise RuntimeError

    with holdfast.connect(server.url) as hf:
        hf.subscribe(broken)
        with hf.lock(name):
            pass


def test_a_callback_that_raises_does_not_stop_the_keeper(server: Server, name: str) -> None:
    """A bug in on_lost is a warning; other holds are renewed on. Cases 45, T08."""

    def broken(_: holdfast.Hold) -> None:
        raise RuntimeError("bug")

    collected: list[Callable[[], None]] = []
    with holdfast.connect(server.url) as hf, pytest.warns(UserWarning, match="bug"):
        sick = hf.lock(name, lease=0.1, renew=False, on_lost=broken).acquire()
        well = hf.lock(f"{name}-2", lease=0.4).acquire()
        time.sleep(0.9)
        well.ensure()
        well.release()
        assert sick.lost.is_set()
        collected.append(sick.ensure)


OPTIMISED = """
import signal, sys
import holdfast

assert False, "asserts are off"
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
with holdfast.connect(sys.argv[1]) as hf:
    for bad in ({"lease": 0}, {"wait": -1}, {"acks": 0}, {"on_lost": "shout"}):
        try:
            hf.lock("x", **bad)
        except holdfast.UsageError:
            print("refused", end=" ")
    with hf.lock(sys.argv[2]) as hold:
        print(hf.lock(sys.argv[2]).try_acquire(), hold.remaining() > 29, end=" ")
    lost = hf.lock(sys.argv[2], lease=0.2, renew=False, on_lost="ignore").acquire()
    print(lost.lost.wait(2), end=" ")
after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
print(before == after)
"""


def test_nothing_depends_on_asserts_and_no_signal_is_touched(server: Server, name: str) -> None:
    """Under `python -O` all guards stand; a loss raises no KeyboardInterrupt of ours. 23, 48."""
    done = subprocess.run(
        [sys.executable, "-O", "-c", OPTIMISED, server.url, name],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stdout.split() == [*["refused"] * 4, "None", "True", "True", "True"], done.stderr


def test_holds_that_come_and_go_in_many_threads_leave_the_keeper_empty(
    server: Server, name: str
) -> None:
    """Added and forgotten from eight threads at once, while renewals run: the table agrees. T15."""
    failed: list[BaseException] = []
    with holdfast.connect(server.url) as hf:

        def churn(number: int) -> None:
            try:
                for turn in range(150):
                    held = [hf.lock(f"{name}-{number}-{n}", lease=0.5).acquire() for n in range(4)]
                    if turn % 50 == 0:
                        time.sleep(0.3)
                    for hold in held:
                        hold.release()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=churn, args=(number,)) for number in range(8)]
        kept = hf.lock(f"{name}-kept", lease=0.5).acquire()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert failed == []
        kept.ensure()
        assert hf._kit.keeper.kept() == 1
        kept.release()
        assert hf._kit.keeper.kept() == 0
