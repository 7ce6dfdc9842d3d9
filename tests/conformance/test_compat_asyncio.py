"""AsyncRedisPyLock behaves as the asyncio Lock of redis-py, and lacks its defects."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio
import redis.asyncio.lock
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError

import holdfast
import holdfast.aio
from holdfast.compat import AsyncRedisPyLock, RedisPyLock, _clients, _protocol
from holdfast.compat._local import FORGOTTEN_MOST
from holdfast.errors import UsageError
from holdfast.server import Server, find_servers
from tests.support.proxy import Proxy

Body = Callable[[Any], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module", params=find_servers(), ids=lambda binary: binary.label)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as started:
        yield started


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    server.command("FLUSHALL")


@pytest.fixture
def play(server: Server) -> Callable[[Body], None]:
    """Run a coroutine function with a client, in a loop of its own."""

    def run(body: Body) -> None:
        async def main() -> None:
            async with redis.asyncio.Redis(port=server.port) as client:
                await body(client)

        asyncio.run(main())

    return run


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A way to the server that can be made to fail, for clients that give up soon."""
    monkeypatch.setattr(_clients, "aconnect", partial(holdfast.aio.connect, timeout=0.4))
    with Proxy(server.port) as started:
        yield started


def ours(client: Any, name: Any = "foo", **keywords: Any) -> AsyncRedisPyLock:
    made = client.lock(name, lock_class=AsyncRedisPyLock, **keywords)
    assert isinstance(made, AsyncRedisPyLock)
    return made


async def eventually(condition: Callable[[], Awaitable[object]], seconds: float = 3.0) -> None:
    ends = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < ends, "it did not come to pass"
        await asyncio.sleep(0.01)


async def until_waiting(r: Any, number: int, name: str = "foo") -> None:
    async def enough() -> bool:
        return int(await r.zcard(f"{{{name}}}:queue")) == number

    await eventually(enough)


async def release_soon(lock: Any, seconds: float = 0.1) -> None:
    await asyncio.sleep(seconds)
    await lock.release()


# ── what redis-py's own tests ask of a Lock ────────────────────────────────────────────────────


def test_acquiring_writes_the_token_and_releasing_removes_the_key(
    play: Callable[[Body], None],
) -> None:
    """The key holds `local.token`; unlike redis-py's it always has a TTL, here of 30 s."""

    async def body(r: Any) -> None:
        lock = ours(r)
        assert await lock.acquire(blocking=False) is True
        assert await r.get("foo") == lock.local.token
        assert 0 < await r.ttl("foo") <= 30
        await lock.release()
        assert await r.get("foo") is None
        assert lock.local.token is None

    play(body)


@pytest.mark.parametrize("thread_local", [True, False])
@pytest.mark.parametrize("token", ["test", b"test"])
def test_a_given_token_stands_in_the_key(
    play: Callable[[Body], None], token: Any, thread_local: bool
) -> None:
    """A token given as str or bytes is the value of the key, and bytes in `local.token`."""

    async def body(r: Any) -> None:
        lock = ours(r, thread_local=thread_local)
        assert await lock.acquire(blocking=False, token=token)
        assert await r.get("foo") == b"test"
        assert lock.local.token == b"test"
        assert 0 < await r.ttl("foo") <= 30
        await lock.release()
        assert await r.get("foo") is None
        assert lock.local.token is None

    play(body)


def test_locked_says_whether_anybody_holds_it(play: Callable[[Body], None]) -> None:
    """False, True while held (also seen from another lock object), False again."""

    async def body(r: Any) -> None:
        lock = ours(r)
        assert await lock.locked() is False
        await lock.acquire(blocking=False)
        assert await lock.locked() is True
        assert await ours(r).locked() is True
        await lock.release()
        assert await lock.locked() is False

    play(body)


@pytest.mark.parametrize("decode", [False, True])
def test_owned_says_whether_this_object_holds_it(server: Server, decode: bool) -> None:
    """Only the object that acquired owns, with clients that decode and that do not."""

    async def main() -> None:
        async with redis.asyncio.Redis(port=server.port, decode_responses=decode) as r:
            first, second = ours(r), ours(r)
            for mine, other in ((first, second), (second, first)):
                assert await mine.owned() is False
                await mine.acquire(blocking=False)
                assert await mine.owned() is True
                assert await other.owned() is False
                await mine.release()
                assert await mine.owned() is False

    asyncio.run(main())


def test_two_lock_objects_compete(play: Callable[[Body], None]) -> None:
    """While one holds, the other is refused, and the other way round."""

    async def body(r: Any) -> None:
        first, second = ours(r), ours(r)
        assert await first.acquire(blocking=False)
        assert not await second.acquire(blocking=False)
        await first.release()
        assert await second.acquire(blocking=False)
        assert not await first.acquire(blocking=False)
        await second.release()

    play(body)


@pytest.mark.parametrize("timeout", [10, 9.5])
def test_timeout_is_the_life_of_the_key(play: Callable[[Body], None], timeout: float) -> None:
    """Whole and fractional seconds become the TTL."""

    async def body(r: Any) -> None:
        lock = ours(r, timeout=timeout)
        assert await lock.acquire(blocking=False)
        assert 8000 < await r.pttl("foo") <= timeout * 1000
        await lock.release()

    play(body)


@pytest.mark.parametrize("token", [None, "mine"])
def test_without_timeout_the_lease_is_renewed(
    play: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch, token: Any
) -> None:
    """A lock without timeout outlives its lease while it is held (here the lease is 0.3 s)."""
    monkeypatch.setattr(_protocol, "RENEWED_LEASE_S", 0.3)

    async def body(r: Any) -> None:
        lock = ours(r)
        await lock.acquire(token=token)
        await asyncio.sleep(0.7)
        assert await lock.owned()
        assert 0 < await r.pttl("foo") <= 300
        await lock.release()
        assert not await r.exists("foo")

    play(body)


def test_the_settings_of_an_object_are_its_attributes(play: Callable[[Body], None]) -> None:
    """Constructor arguments are readable under redis-py's names, with redis-py's defaults."""

    async def body(r: Any) -> None:
        lock, plain = ours(r), r.lock("foo")
        for name in inspect.signature(redis.asyncio.lock.Lock.__init__).parameters:
            if name != "self":
                assert getattr(lock, name) == getattr(plain, name)
        assert not ours(r, blocking=False).blocking

    play(body)


def test_signatures_are_those_of_redis_py() -> None:
    """Every public method takes the same parameters, in the same order, with the same defaults."""
    methods = ["__init__", "__aenter__", "acquire", "locked", "owned", "release", "extend"]
    for method in [*methods, "reacquire"]:
        mine, theirs = (
            [
                (parameter.name, parameter.kind, parameter.default)
                for parameter in inspect.signature(getattr(kind, method)).parameters.values()
            ]
            for kind in (AsyncRedisPyLock, redis.asyncio.lock.Lock)
        )
        assert mine == theirs, method


@pytest.mark.parametrize("sleep", [0.05, 60])
def test_blocking_timeout_bounds_the_wait(play: Callable[[Body], None], sleep: float) -> None:
    """A wait in vain takes the blocking_timeout and not longer, whatever `sleep` is."""

    async def body(r: Any) -> None:
        async with ours(r, blocking=False):
            for lock, wait in (
                (ours(r, sleep=sleep, blocking_timeout=0.2), None),
                (ours(r, sleep=sleep), 0.2),
            ):
                began = time.monotonic()
                assert not await lock.acquire(blocking_timeout=wait)
                assert 0.15 < time.monotonic() - began < 0.3
            began = time.monotonic()
            assert not await ours(r, blocking_timeout=0).acquire()
            assert time.monotonic() - began < 0.15

    play(body)


def test_the_block_holds_the_lock(play: Callable[[Body], None]) -> None:
    """`async with` acquires and gives the lock object; its end releases, after an exception too."""

    async def body(r: Any) -> None:
        async with ours(r, blocking_timeout=0.2) as lock:
            assert await r.get("foo") == lock.local.token
        assert await r.get("foo") is None
        with pytest.raises(ZeroDivisionError):
            async with ours(r):
                raise ZeroDivisionError
        assert await r.get("foo") is None

    play(body)


def test_a_block_that_gets_no_lock_raises_with_its_name(play: Callable[[Body], None]) -> None:
    """A key that anybody wrote counts as held; the LockError carries the lock's name."""

    async def body(r: Any) -> None:
        await r.set("foo", "bar")
        with pytest.raises(LockError) as caught:
            async with ours(r, blocking_timeout=0.1):
                pass
        assert caught.value.lock_name == "foo"
        assert await r.get("foo") == b"bar"

    play(body)


@pytest.mark.parametrize("timeout", [None, 10])
def test_releasing_what_is_not_held_raises(
    play: Callable[[Body], None], timeout: float | None
) -> None:
    """LockError if nothing was acquired; LockNotOwnedError after a loss, and the token is gone."""

    async def body(r: Any) -> None:
        lock = ours(r, timeout=timeout)
        with pytest.raises(LockError) as caught:
            await lock.release()
        assert type(caught.value) is LockError
        await lock.acquire(blocking=False)
        await r.set("foo", "a")
        assert not await lock.owned()
        with pytest.raises(LockNotOwnedError):
            await lock.release()
        assert lock.local.token is None
        assert await r.get("foo") == b"a"
        with pytest.raises(LockError):
            await lock.release()

    play(body)


def test_the_end_of_a_block_raises_or_logs_the_loss(
    play: Callable[[Body], None], caplog: pytest.LogCaptureFixture
) -> None:
    """As `raise_on_release_error` says; without it the loss is written to the log."""

    async def body(r: Any) -> None:
        for timeout in (None, 10):
            with pytest.raises(LockNotOwnedError):
                async with ours(r, timeout=timeout, blocking=False):
                    await r.set("foo", "a")
            await r.delete("foo")
            caplog.clear()
            async with ours(r, timeout=timeout, blocking=False, raise_on_release_error=False):
                await r.set("foo", "a")
            assert any(record.name == "holdfast.compat" for record in caplog.records)
            await r.delete("foo")

    play(body)


def test_extend_adds_to_what_is_left_or_replaces_it(play: Callable[[Body], None]) -> None:
    """Whole and fractional seconds on top of the rest; with `replace_ttl` from now on."""

    async def body(r: Any) -> None:
        lock = ours(r, timeout=10)
        assert await lock.acquire(blocking=False)
        assert await lock.extend(10) is True
        assert 18000 < await r.pttl("foo") <= 20000
        await r.pexpire("foo", 5000)
        await lock.extend(10.0)
        assert 13000 < await r.pttl("foo") <= 15000
        assert await lock.extend(10, replace_ttl=True)
        assert 8000 < await r.pttl("foo") <= 10000
        await lock.release()

    play(body)


def test_reacquire_begins_the_timeout_anew(play: Callable[[Body], None]) -> None:
    """The TTL is the lock's timeout again."""

    async def body(r: Any) -> None:
        lock = ours(r, timeout=10)
        assert await lock.acquire(blocking=False)
        await r.pexpire("foo", 5000)
        assert await lock.reacquire() is True
        assert 8000 < await r.pttl("foo") <= 10000
        await lock.release()

    play(body)


PROLONGING: list[Callable[[AsyncRedisPyLock], Awaitable[object]]] = [
    lambda lock: lock.extend(10),
    lambda lock: lock.extend(10, replace_ttl=True),
    lambda lock: lock.reacquire(),
]


@pytest.mark.parametrize("prolong", PROLONGING)
def test_prolonging_what_is_not_held_raises(
    play: Callable[[Body], None], prolong: Callable[[AsyncRedisPyLock], Awaitable[object]]
) -> None:
    """LockError if nothing was acquired or there is no timeout, LockNotOwnedError after a loss."""

    async def body(r: Any) -> None:
        lock = ours(r, timeout=10)
        with pytest.raises(LockError):
            await prolong(lock)
        async with ours(r) as endless:
            with pytest.raises(LockError) as caught:
                await prolong(endless)
            assert not isinstance(caught.value, LockNotOwnedError)
        assert await lock.acquire(blocking=False)
        await r.set("foo", "a")
        with pytest.raises(LockNotOwnedError):
            await prolong(lock)
        assert await r.ttl("foo") == -1

    play(body)


# ── side by side with locks of redis-py, and with the blocking face ────────────────────────────


@pytest.mark.parametrize("timeout", [None, 10])
def test_each_excludes_the_other(play: Callable[[Body], None], timeout: float | None) -> None:
    """On one name, whoever holds, the other kind is refused, and sees that it is locked."""

    async def body(r: Any) -> None:
        mine, plain = ours(r, timeout=timeout), r.lock("foo", timeout=timeout)
        for holder, other in ((mine, plain), (plain, mine)):
            assert await holder.acquire(blocking=False)
            assert await other.locked()
            assert not await other.owned()
            assert not await other.acquire(blocking=False)
            await holder.release()

    play(body)


def test_each_waits_for_the_other(play: Callable[[Body], None]) -> None:
    """Who waits for the other kind gets the name soon after its release, and then alone."""

    async def body(r: Any) -> None:
        for holder, waiter in (
            (ours(r, timeout=10), r.lock("foo", timeout=5, sleep=0.02)),
            (r.lock("foo", timeout=10), ours(r)),
        ):
            assert await holder.acquire()
            releasing = asyncio.create_task(release_soon(holder))
            began = time.monotonic()
            assert await waiter.acquire(blocking_timeout=3)
            assert time.monotonic() - began < 1
            await releasing
            assert await waiter.owned()
            assert not await holder.acquire(blocking=False)
            await waiter.release()

    play(body)


def test_the_blocking_face_is_excluded_too(server: Server, play: Callable[[Body], None]) -> None:
    """RedisPyLock and AsyncRedisPyLock on one name are one lock."""

    async def body(r: Any) -> None:
        with redis.Redis(port=server.port) as blocking:
            other: RedisPyLock = blocking.lock("foo", lock_class=RedisPyLock)
            async with ours(r):
                assert not other.acquire(blocking=False)
            with other:
                assert not await ours(r).acquire(blocking=False)

    play(body)


# ── what redis-py's lock does not give ─────────────────────────────────────────────────────────


def test_waiters_are_served_in_order_and_at_once(play: Callable[[Body], None]) -> None:
    """Five waiters get the lock in the order they came, by hand-over: `sleep` is of no account."""

    async def body(r: Any) -> None:
        order: list[int] = []
        first = ours(r)
        await first.acquire()

        async def wait(number: int) -> None:
            async with ours(r, sleep=30):
                order.append(number)

        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(wait(number)))
            await until_waiting(r, len(tasks))
        began = time.monotonic()
        await first.release()
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3, 4]
        assert time.monotonic() - began < 0.4

    play(body)


def test_two_tasks_take_turns_on_one_lock_object(play: Callable[[Body], None]) -> None:
    """Many tasks share one object: never two inside, each releases its own, none is left over."""

    async def body(r: Any) -> None:
        lock, inside = ours(r), 0

        async def work() -> None:
            nonlocal inside
            for _ in range(5):
                async with lock:
                    inside += 1
                    assert inside == 1
                    assert await lock.owned()
                    inside -= 1

        await asyncio.gather(*(work() for _ in range(5)))
        assert not await r.exists("foo")
        assert lock.local.token is None

    play(body)


def test_a_task_that_lost_the_lock_does_not_release_the_next_holder(
    play: Callable[[Body], None],
) -> None:
    """One lock object, two tasks: the first one's late release leaves the second one's lock."""

    async def body(r: Any) -> None:
        lock = ours(r, timeout=10)
        assert await lock.acquire()
        taken, done = asyncio.Event(), asyncio.Event()

        async def second() -> None:
            async with lock:
                taken.set()
                await done.wait()
                assert await lock.owned()

        task = asyncio.create_task(second())
        await until_waiting(r, 1)
        await r.pexpire("foo", 1)
        await asyncio.wait_for(taken.wait(), 3)
        assert not await lock.owned()
        with pytest.raises(LockNotOwnedError):
            await lock.release()
        done.set()
        await task

    play(body)


def test_a_task_that_tried_in_vain_owns_nothing(play: Callable[[Body], None]) -> None:
    """After a refused acquire, or its own release, a task does not find the lock of another."""

    async def body(r: Any) -> None:
        lock = ours(r)
        await lock.acquire()

        async def contender() -> None:
            assert not await lock.acquire(blocking=False)
            assert lock.local.token is None
            assert not await lock.owned()
            with pytest.raises(LockError):
                await lock.release()

        await asyncio.create_task(contender())
        assert await lock.owned()
        await lock.release()

    play(body)


@pytest.mark.parametrize("timeout", [None, 10])
@pytest.mark.parametrize("thread_local", [True, False])
def test_a_lock_may_be_released_by_another_task(
    play: Callable[[Body], None], timeout: float | None, thread_local: bool
) -> None:
    """Acquired by a task that ended (wait_for), or that still runs, released by another."""

    async def body(r: Any) -> None:
        lock = ours(r, timeout=timeout, thread_local=thread_local)
        assert await asyncio.create_task(lock.acquire())
        assert await asyncio.wait_for(lock.owned(), 1)
        await lock.release()
        assert not await r.exists("foo")
        assert await lock.acquire()
        await asyncio.create_task(lock.release())
        assert not await r.exists("foo")
        with pytest.raises(LockError):
            await lock.release()

    play(body)


@pytest.mark.parametrize("timeout", [None, 10])
def test_a_cancelled_release_leaves_no_riddle(
    play: Callable[[Body], None], timeout: float | None
) -> None:
    """Cancelled at any point, the lock is owned or free, and releasing again ends it."""

    async def body(r: Any) -> None:
        for turns in range(4):
            lock = ours(r, timeout=timeout, thread_local=False)
            assert await lock.acquire(blocking=False)
            task = asyncio.create_task(lock.release())
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.done():
                continue
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await lock.owned() == await lock.locked()
            await lock.release()
            assert not await lock.locked()
            assert lock.local.token is None

    play(body)


@pytest.mark.parametrize("token", [None, "mine"])
def test_a_cancelled_acquire_leaves_nothing(
    play: Callable[[Body], None], token: str | None
) -> None:
    """Cancelled at once, on its way, or in the queue: no key, no place in the line."""

    async def body(r: Any) -> None:
        await ours(r).locked()
        for turns in range(8):
            lock = ours(r, thread_local=False)
            task = asyncio.create_task(lock.acquire(token=token))
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.done():
                await lock.release()
                continue
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await r.exists("foo")
        async with ours(r):
            task = asyncio.create_task(ours(r).acquire(token=token))
            await until_waiting(r, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_waiting(r, 0)

    play(body)


@pytest.mark.parametrize("timeout", [None, 10])
def test_release_may_be_repeated_after_an_error(
    proxy: Proxy, server: Server, timeout: float | None
) -> None:
    """An unreachable server is redis-py's ConnectionError, and releasing again then works."""

    async def main() -> None:
        async with redis.asyncio.Redis(port=proxy.port) as r:
            lock = ours(r, timeout=timeout)
            assert await lock.acquire()
            proxy.refuse()
            proxy.reset()
            with pytest.raises(RedisConnectionError) as caught:
                await lock.release()
            assert isinstance(caught.value.__cause__, holdfast.Unavailable)
            assert lock.local.token is not None
            proxy.accept()
            await lock.release()
            assert server.command("EXISTS", "foo") == 0
            assert lock.local.token is None

    asyncio.run(main())


@pytest.mark.parametrize("timeout", [None, 10])
@pytest.mark.parametrize("token", [None, "mine"])
def test_lost_replies_are_made_good(
    proxy: Proxy, server: Server, timeout: float | None, token: str | None
) -> None:
    """If the reply to acquire or release is lost, both still do what they say, once."""

    async def main() -> None:
        async with redis.asyncio.Redis(port=proxy.port) as r:
            lock = ours(r, timeout=timeout)
            await lock.locked()
            proxy.drop_next_reply()
            assert await lock.acquire(blocking_timeout=1, token=token)
            assert await lock.owned()
            proxy.drop_next_reply()
            await lock.release()
            assert server.command("EXISTS", "foo") == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "script", [_protocol.ENDS, _protocol.LAST, _protocol.ADOPT], ids=lambda it: it.name
)
def test_a_lost_reply_does_not_extend_twice(
    proxy: Proxy, server: Server, monkeypatch: pytest.MonkeyPatch, script: Any
) -> None:
    """Whichever reply is lost, extend adds its seconds once, and a token is adopted."""
    insist, left = _protocol._insist, [script]

    async def losing(kit: Any, call: Any) -> Any:
        if call.script in left:
            left.remove(call.script)
            proxy.drop_next_reply()
        return await insist(kit, call)

    monkeypatch.setattr(_protocol, "_insist", losing)

    async def main() -> None:
        async with redis.asyncio.Redis(port=proxy.port) as r:
            lock = ours(r, timeout=10)
            await lock.acquire(token="mine")
            await lock.extend(10)
            assert not left
            assert 18000 < int(str(server.command("PTTL", "foo"))) <= 20000
            assert server.command("GET", "foo") == "mine"
            await lock.release()

    asyncio.run(main())


def test_one_token_used_twice_still_excludes(play: Callable[[Body], None]) -> None:
    """Tasks that all use one token, on objects of their own, are never inside together."""

    async def body(r: Any) -> None:
        inside = 0

        async def work() -> None:
            nonlocal inside
            lock = ours(r, timeout=10)
            assert await lock.acquire(token="same")
            inside += 1
            assert inside == 1
            assert not await ours(r).acquire(blocking=False, token="same")
            inside -= 1
            await lock.release()

        await asyncio.gather(*(work() for _ in range(5)))

    play(body)


def test_a_token_passed_on_gives_the_lock_to_another_object(play: Callable[[Body], None]) -> None:
    """`local.token` set by hand releases, extends and owns, as in redis-py; None forgets it."""

    async def body(r: Any) -> None:
        first, second = ours(r, timeout=10), ours(r, timeout=10)
        await first.acquire()
        second.local.token = first.local.token
        assert await second.owned()
        assert await second.extend(5)
        second.local.token = None
        with pytest.raises(LockError):
            await second.release()
        second.local.token = first.local.token.decode()
        await second.release()
        assert second.local.token is None
        assert not await first.owned()
        with pytest.raises(LockNotOwnedError):
            await first.release()

    play(body)


def test_another_thread_sees_nothing(server: Server, play: Callable[[Body], None]) -> None:
    """With thread_local a second thread finds no token: LockError, and no AttributeError."""

    async def body(r: Any) -> None:
        lock, found = ours(r, timeout=10), []

        async def verbs() -> None:
            found.append(await lock.owned())
            for verb in (lock.release, lock.reacquire):
                with pytest.raises(LockError):
                    await verb()
            found.append("done")

        async with lock:
            thread = threading.Thread(target=lambda: asyncio.run(verbs()))
            thread.start()
            await asyncio.to_thread(thread.join, 5)
        assert found == [False, "done"]

    play(body)


def test_a_lock_left_to_end_by_itself_does_not_collect_tasks(
    play: Callable[[Body], None],
) -> None:
    """One object, acquired by task after task and never released, keeps only a few of them."""

    async def body(r: Any) -> None:
        lock = ours(r, timeout=10)
        for _ in range(4 * FORGOTTEN_MOST):
            assert await asyncio.create_task(lock.acquire(blocking=False))
            await r.delete("foo")
        assert len(lock.local._places) <= 3 * FORGOTTEN_MOST + 1

    play(body)


def test_what_cannot_be_right_is_refused(play: Callable[[Body], None]) -> None:
    """UsageError, which is a ValueError; nothing is written."""

    async def body(r: Any) -> None:
        for keywords in ({"timeout": -1}, {"name": b"\xff"}, {"blocking_timeout": "soon"}):
            with pytest.raises(UsageError):
                await ours(r, **keywords).acquire()
        with pytest.raises(UsageError, match="UTF-8"):
            await ours(r).acquire(token=b"\xff")
        assert await r.dbsize() == 0

    play(body)


# ── the client behind ──────────────────────────────────────────────────────────────────────────


def test_the_redis_client_is_not_kept_alive(server: Server) -> None:
    """When the last lock object and the client are dropped, what was behind them is closed."""

    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        held = ours(client)
        async with held:
            assert not await ours(client, blocking_timeout=0.05).acquire()
        behind = _clients._tenants[client].client
        await client.aclose()
        alive = weakref.ref(client)
        del client, held
        gc.collect()
        assert alive() is None

        async def closed() -> bool:
            return behind._rt.closed

        await eventually(closed)

    asyncio.run(main())


def test_the_end_of_the_loop_closes_what_was_behind(server: Server) -> None:
    """Nobody closes anything, and asyncio.run leaves no connection; the next loop starts anew."""
    client = redis.asyncio.Redis(port=server.port)
    locks = {timeout: ours(client, f"foo-{timeout}", timeout=timeout) for timeout in (None, 10)}

    async def first() -> Any:
        for lock in locks.values():
            await lock.acquire()
        return _clients._tenants[client].client

    async def second() -> None:
        for lock in locks.values():
            assert await lock.owned()
            await lock.release()
            async with lock:
                pass

    behind = asyncio.run(first())
    assert behind._rt.closed
    asyncio.run(second())
    assert server.command("EXISTS", "foo-None", "foo-10") == 0
    gc.collect()


def test_two_loops_at_once_are_refused(play: Callable[[Body], None]) -> None:
    """A redis.asyncio client that is in use in another running loop: a clear UsageError."""

    async def body(r: Any) -> None:
        async with ours(r):

            def elsewhere() -> None:
                with pytest.raises(UsageError, match="another running event loop"):
                    asyncio.run(ours(r, "bar").acquire())

            await asyncio.to_thread(elsewhere)

    play(body)
