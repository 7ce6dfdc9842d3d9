"""RedisPyLock behaves as the Lock of redis-py, shares names with it, and lacks its defects."""

from __future__ import annotations

import gc
import inspect
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
import redis.lock
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError

import holdfast
from holdfast.compat import RedisPyLock, _clients, _protocol
from holdfast.compat._local import Grip, Place
from holdfast.errors import UsageError
from holdfast.server import Server, find_servers
from tests.support.proxy import Proxy


@pytest.fixture(scope="module", params=find_servers(), ids=lambda binary: binary.label)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as started:
        yield started


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    server.command("FLUSHALL")


@pytest.fixture
def r(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        yield client


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A way to the server that can be made to fail, for clients that give up soon."""
    monkeypatch.setattr(_clients, "connect", partial(holdfast.connect, timeout=0.4))
    with Proxy(server.port) as started:
        yield started


@pytest.fixture
def far(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client whose connections lead through the proxy."""
    with redis.Redis(port=proxy.port) as client:
        yield client


def ours(client: Any, name: Any = "foo", **keywords: Any) -> RedisPyLock:
    made = client.lock(name, lock_class=RedisPyLock, **keywords)
    assert isinstance(made, RedisPyLock)
    return made


def in_thread(work: Callable[[], object]) -> Any:
    """What `work` returns, or the exception that it raises, in another thread."""
    results: list[object] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(10)
    assert results, "the thread did not end"
    return results[0]


def eventually(condition: Callable[[], object], seconds: float = 3.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come to pass"
        time.sleep(0.01)


def waiting(r: redis.Redis, name: str = "foo") -> int:
    return int(r.zcard(f"{{{name}}}:queue"))


# ── what redis-py's own tests ask of a Lock ────────────────────────────────────────────────────


def test_acquiring_writes_the_token_and_releasing_removes_the_key(r: redis.Redis) -> None:
    """The key holds `local.token`; unlike redis-py's it always has a TTL, here of 30 s."""
    lock = ours(r)
    assert lock.acquire(blocking=False) is True
    assert r.get("foo") == lock.local.token
    assert 0 < r.ttl("foo") <= 30
    lock.release()
    assert r.get("foo") is None
    assert lock.local.token is None


@pytest.mark.parametrize("thread_local", [True, False])
@pytest.mark.parametrize("token", ["test", b"test"])
def test_a_given_token_stands_in_the_key(r: redis.Redis, token: Any, thread_local: bool) -> None:
    """A token given as str or bytes is the value of the key, and bytes in `local.token`."""
    lock = ours(r, thread_local=thread_local)
    assert lock.acquire(blocking=False, token=token)
    assert r.get("foo") == b"test"
    assert lock.local.token == b"test"
    assert lock.owned()
    assert 0 < r.ttl("foo") <= 30
    lock.release()
    assert r.get("foo") is None
    assert lock.local.token is None


def test_locked_says_whether_anybody_holds_it(r: redis.Redis) -> None:
    """False, True while held (also seen from another lock object), False again."""
    lock = ours(r)
    assert lock.locked() is False
    lock.acquire(blocking=False)
    assert lock.locked() is True
    assert ours(r).locked() is True
    lock.release()
    assert lock.locked() is False


@pytest.mark.parametrize("decode", [False, True])
def test_owned_says_whether_this_object_holds_it(server: Server, decode: bool) -> None:
    """Only the object that acquired owns, with clients that decode and that do not."""
    with redis.Redis(port=server.port, decode_responses=decode) as client:
        first, second = ours(client), ours(client)
        for mine, other in ((first, second), (second, first)):
            assert mine.owned() is False
            mine.acquire(blocking=False)
            assert mine.owned() is True
            assert other.owned() is False
            assert mine.locked() is True
            mine.release()
            assert mine.owned() is False


def test_two_lock_objects_compete(r: redis.Redis) -> None:
    """While one holds, the other is refused, and the other way round."""
    first, second = ours(r), ours(r)
    assert first.acquire(blocking=False)
    assert not second.acquire(blocking=False)
    first.release()
    assert second.acquire(blocking=False)
    assert not first.acquire(blocking=False)
    second.release()


@pytest.mark.parametrize("timeout", [10, 9.5])
def test_timeout_is_the_life_of_the_key(r: redis.Redis, timeout: float) -> None:
    """Whole and fractional seconds become the TTL."""
    lock = ours(r, timeout=timeout)
    assert lock.acquire(blocking=False)
    assert 8000 < r.pttl("foo") <= timeout * 1000
    lock.release()


def test_a_timeout_is_not_renewed(r: redis.Redis) -> None:
    """As in redis-py, a lock with a timeout ends with it, and then somebody else may have it."""
    lock = ours(r, timeout=0.2)
    assert lock.acquire()
    time.sleep(0.3)
    assert not lock.owned()
    assert ours(r, timeout=5).acquire(blocking=False)
    with pytest.raises(LockNotOwnedError):
        lock.release()


@pytest.mark.parametrize("timeout", [None, 0])
def test_without_timeout_the_lease_is_renewed(
    r: redis.Redis, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    """A lock without timeout outlives its lease while it is held (here the lease is 0.3 s)."""
    monkeypatch.setattr(_protocol, "RENEWED_LEASE_S", 0.3)
    with ours(r, timeout=timeout) as lock:
        time.sleep(0.7)
        assert lock.owned()
        assert 0 < r.pttl("foo") <= 300
    assert not r.exists("foo")


def test_the_settings_of_an_object_are_its_attributes(r: redis.Redis) -> None:
    """Constructor arguments are readable under redis-py's names, with redis-py's defaults."""
    for lock, plain in ((ours(r), r.lock("foo")), (ours(r, blocking=False), None)):
        assert lock.redis is r
        assert lock.name == "foo"
        if plain is None:
            assert lock.blocking is False
        else:
            for name in inspect.signature(redis.lock.Lock.__init__).parameters:
                if name != "self":
                    assert getattr(lock, name) == getattr(plain, name)


def test_signatures_are_those_of_redis_py() -> None:
    """Every public method takes the same parameters, in the same order, with the same defaults."""
    methods = ["__init__", "__enter__", "acquire", "locked", "owned", "release", "extend"]
    for method in [*methods, "reacquire"]:
        mine, theirs = (
            [
                (parameter.name, parameter.kind, parameter.default)
                for parameter in inspect.signature(getattr(kind, method)).parameters.values()
            ]
            for kind in (RedisPyLock, redis.lock.Lock)
        )
        assert mine == theirs, method


@pytest.mark.parametrize("given", ["to the lock", "to acquire"])
def test_blocking_timeout_bounds_the_wait(r: redis.Redis, given: str) -> None:
    """A wait in vain takes the blocking_timeout, and not longer."""
    at_lock = given == "to the lock"
    with ours(r, blocking=False):
        lock = ours(r, sleep=0.05, blocking_timeout=0.3 if at_lock else None)
        began = time.monotonic()
        assert not (lock.acquire() if at_lock else lock.acquire(blocking_timeout=0.3))
        assert 0.25 < time.monotonic() - began < 0.4


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_wait_of_nothing_is_one_try(r: redis.Redis, seconds: float) -> None:
    """blocking_timeout=0 takes a free lock, and gives up at once on one that is held."""
    with ours(r, blocking_timeout=seconds):
        began = time.monotonic()
        assert not ours(r, blocking_timeout=seconds).acquire()
        assert time.monotonic() - began < 0.2


def test_the_block_holds_the_lock(r: redis.Redis) -> None:
    """`with` acquires and gives the lock object; its end releases, also after an exception."""
    with ours(r, blocking_timeout=0.2) as lock:
        assert r.get("foo") == lock.local.token
    assert r.get("foo") is None
    with pytest.raises(ZeroDivisionError), ours(r):
        raise ZeroDivisionError
    assert r.get("foo") is None


def test_a_block_that_gets_no_lock_raises_with_its_name(r: redis.Redis) -> None:
    """A key that anybody wrote counts as held; the LockError carries the lock's name."""
    r.set("foo", "bar")
    with pytest.raises(LockError) as caught, ours(r, blocking_timeout=0.1):
        pass
    assert caught.value.lock_name == "foo"
    assert not isinstance(caught.value, LockNotOwnedError)
    assert r.get("foo") == b"bar"


def test_releasing_an_unlocked_lock_raises(r: redis.Redis) -> None:
    """LockError, before the first acquire and after the release."""
    lock = ours(r)
    with pytest.raises(LockError):
        lock.release()
    lock.acquire()
    lock.release()
    with pytest.raises(LockError) as caught:
        lock.release()
    assert caught.value.lock_name == "foo"


@pytest.mark.parametrize("timeout", [None, 10])
@pytest.mark.parametrize("happened", ["overwritten", "deleted"])
def test_releasing_a_lost_lock_raises(r: redis.Redis, timeout: float | None, happened: str) -> None:
    """LockNotOwnedError, the stranger's key stays, and the token is cleared all the same."""
    lock = ours(r, timeout=timeout)
    lock.acquire(blocking=False)
    if happened == "overwritten":
        r.set("foo", "a")
    else:
        r.delete("foo")
    assert not lock.owned()
    with pytest.raises(LockNotOwnedError) as caught:
        lock.release()
    assert caught.value.lock_name == "foo"
    assert lock.local.token is None
    assert r.get("foo") == (b"a" if happened == "overwritten" else None)


@pytest.mark.parametrize("timeout", [None, 10])
def test_the_end_of_a_block_raises_or_logs_the_loss(
    r: redis.Redis, caplog: pytest.LogCaptureFixture, timeout: float | None
) -> None:
    """As `raise_on_release_error` says; without it the loss is written to the log."""
    with pytest.raises(LockNotOwnedError), ours(r, timeout=timeout, blocking=False):
        r.set("foo", "a")
    r.delete("foo")
    with ours(r, timeout=timeout, blocking=False, raise_on_release_error=False):
        r.set("foo", "a")
    assert any(record.name == "holdfast.compat" for record in caplog.records)
    r.delete("foo")
    with ours(r, raise_on_release_error=False) as lock:
        lock.release()


@pytest.mark.parametrize("more", [10, 10.0])
def test_extend_adds_to_what_is_left(r: redis.Redis, more: float) -> None:
    """Half used or not, the additional time comes on top of the rest."""
    lock = ours(r, timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(more) is True
    assert 18000 < r.pttl("foo") <= 20000
    r.pexpire("foo", 5000)
    lock.extend(more)
    assert 13000 < r.pttl("foo") <= 15000
    lock.release()
    assert not r.exists("foo")


def test_extend_may_replace_the_ttl(r: redis.Redis) -> None:
    """With `replace_ttl` the time counts from now on, also if that shortens the lock."""
    lock = ours(r, timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(10, replace_ttl=True)
    assert 8000 < r.pttl("foo") <= 10000
    assert lock.extend(3, True)
    assert 2000 < r.pttl("foo") <= 3000
    lock.release()


def test_an_extended_lock_is_owned_beyond_its_timeout(r: redis.Redis) -> None:
    """After an extension the lock is held, and released without error, past its first timeout."""
    lock = ours(r, timeout=0.2)
    lock.acquire()
    lock.extend(5)
    time.sleep(0.3)
    assert lock.owned()
    lock.release()


def test_reacquire_begins_the_timeout_anew(r: redis.Redis) -> None:
    """The TTL is the lock's timeout again."""
    lock = ours(r, timeout=10)
    assert lock.acquire(blocking=False)
    r.pexpire("foo", 5000)
    assert lock.reacquire() is True
    assert 8000 < r.pttl("foo") <= 10000
    lock.release()


PROLONGING: list[Callable[[RedisPyLock], object]] = [
    lambda lock: lock.extend(10),
    lambda lock: lock.extend(10, replace_ttl=True),
    lambda lock: lock.reacquire(),
]


@pytest.mark.parametrize("prolong", PROLONGING)
def test_prolonging_what_is_not_held_raises(
    r: redis.Redis, prolong: Callable[[RedisPyLock], object]
) -> None:
    """LockError if nothing was acquired or there is no timeout, LockNotOwnedError after a loss."""
    lock = ours(r, timeout=10)
    with pytest.raises(LockError) as caught:
        prolong(lock)
    assert caught.value.lock_name == "foo"
    with ours(r) as endless, pytest.raises(LockError) as caught:
        prolong(endless)
    assert not isinstance(caught.value, LockNotOwnedError)
    assert lock.acquire(blocking=False)
    r.set("foo", "a")
    with pytest.raises(LockNotOwnedError) as caught:
        prolong(lock)
    assert caught.value.lock_name == "foo"
    assert r.ttl("foo") == -1
    r.set("foo", lock.local.token)  # ours by value, but without an end: redis-py refuses as well
    with pytest.raises(LockNotOwnedError):
        lock.extend(10)


def test_shortened_to_nothing_the_lock_is_free(r: redis.Redis) -> None:
    """A negative extension beyond the rest frees the lock, as in redis-py."""
    lock = ours(r, timeout=10)
    lock.acquire()
    assert lock.extend(-20)
    assert not r.exists("foo")
    with pytest.raises(LockNotOwnedError):
        lock.release()


# ── side by side with locks of redis-py ────────────────────────────────────────────────────────


@pytest.mark.parametrize("timeout", [None, 10])
def test_each_excludes_the_other(r: redis.Redis, timeout: float | None) -> None:
    """On one name, whoever holds, the other kind is refused, and sees that it is locked."""
    mine, plain = ours(r, timeout=timeout), r.lock("foo", timeout=timeout)
    for holder, other in ((mine, plain), (plain, mine)):
        assert holder.acquire(blocking=False)
        assert other.locked()
        assert not other.owned()
        assert not other.acquire(blocking=False)
        holder.release()


def test_a_plain_lock_waits_for_ours(r: redis.Redis) -> None:
    """redis-py's lock, polling, gets the name after our release."""
    mine, plain = ours(r, thread_local=False), r.lock("foo", sleep=0.02, timeout=5)
    mine.acquire()
    threading.Timer(0.1, mine.release).start()
    assert plain.acquire(blocking_timeout=3)
    assert plain.owned()
    assert not mine.owned()
    assert not mine.acquire(blocking=False)
    plain.release()


@pytest.mark.parametrize("ending", ["released", "expired"])
def test_ours_waits_for_a_plain_lock(r: redis.Redis, ending: str) -> None:
    """Ours gets the name soon after redis-py's lock was released, or ended by itself."""
    plain = r.lock("foo", timeout=0.2 if ending == "expired" else 10, thread_local=False)
    assert plain.acquire()
    if ending == "released":
        threading.Timer(0.1, plain.release).start()
    began = time.monotonic()
    lock = ours(r)
    assert lock.acquire(blocking_timeout=3)
    assert time.monotonic() - began < 1.0
    assert not plain.owned()
    lock.release()


def test_both_kinds_together_count_correctly(r: redis.Redis) -> None:
    """Threads with locks of both kinds, one name: nobody is ever inside with another."""
    inside, worst, rounds = 0, 0, 5

    def work(make: Callable[[], Any]) -> None:
        nonlocal inside, worst
        for _ in range(rounds):
            with make():
                inside += 1
                worst = max(worst, inside)
                time.sleep(0.001)
                inside -= 1

    kinds = [lambda: ours(r, timeout=5), lambda: r.lock("foo", timeout=5, sleep=0.003)]
    threads = [threading.Thread(target=work, args=(kinds[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert worst == 1
    assert inside == 0


# ── what redis-py's lock does not give ─────────────────────────────────────────────────────────


def test_waiters_are_served_in_order_and_at_once(r: redis.Redis) -> None:
    """Three waiters get the lock in the order they came, by hand-over: `sleep` is of no account."""
    order: list[tuple[int, float]] = []
    first = ours(r)
    first.acquire()

    def wait(number: int) -> None:
        with ours(r, sleep=30):
            order.append((number, time.monotonic()))

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        eventually(lambda: waiting(r) == len(threads))
    assert r.exists("foo", "{foo}:fence", "{foo}:queue", "{foo}:waiters") == 4
    assert all(r.pttl(key) > 0 for key in r.scan_iter())
    began = time.monotonic()
    first.release()
    for thread in threads:
        thread.join(10)
    assert [number for number, _ in order] == [0, 1, 2]
    assert order[-1][1] - began < 0.4


def test_a_sleep_longer_than_the_wait_does_not_end_it(r: redis.Redis) -> None:
    """With sleep=60 a wait of 0.3 s is waited for in full, and gets what is freed meanwhile."""
    held = ours(r, thread_local=False)
    held.acquire()
    began = time.monotonic()
    assert not ours(r, sleep=60, blocking_timeout=0.3).acquire()
    assert 0.25 < time.monotonic() - began < 0.4
    threading.Timer(0.1, held.release).start()
    with ours(r, sleep=60, blocking_timeout=0.5) as lock:
        assert lock.owned()


@pytest.mark.parametrize("timeout", [None, 10])
def test_release_may_be_repeated_after_an_error(
    far: redis.Redis, proxy: Proxy, r: redis.Redis, timeout: float | None
) -> None:
    """An unreachable server is redis-py's ConnectionError, and releasing again then works."""
    lock = ours(far, timeout=timeout)
    assert lock.acquire()
    proxy.refuse()
    proxy.reset()
    with pytest.raises(RedisConnectionError):
        lock.release()
    assert lock.local.token is not None
    proxy.accept()
    assert lock.owned() or timeout is None
    lock.release()
    assert not r.exists("foo")
    assert lock.local.token is None


def test_an_unreachable_server_is_an_error_of_redis_py(far: redis.Redis, proxy: Proxy) -> None:
    """Making a lock object sends nothing; asking raises redis.exceptions.ConnectionError."""
    proxy.refuse()
    lock = ours(far, timeout=5)
    asks: list[Callable[[], object]] = [lock.locked, partial(lock.acquire, blocking=False)]
    for ask in asks:
        with pytest.raises(RedisConnectionError) as caught:
            ask()
        assert isinstance(caught.value.__cause__, holdfast.Unavailable)
    assert not lock.owned()


@pytest.mark.parametrize("timeout", [None, 10])
@pytest.mark.parametrize("token", [None, "mine"])
def test_lost_replies_are_made_good(
    far: redis.Redis, proxy: Proxy, r: redis.Redis, timeout: float | None, token: str | None
) -> None:
    """If the reply to acquire or release is lost, both still do what they say, once."""
    lock = ours(far, timeout=timeout)
    lock.locked()  # the connection is open, so that what is lost is the reply that is meant
    proxy.drop_next_reply()
    assert lock.acquire(blocking_timeout=1, token=token)
    assert lock.owned()
    assert r.get("foo") == lock.local.token
    proxy.drop_next_reply()
    lock.release()
    assert not r.exists("foo")


@pytest.fixture
def lose_reply(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> Callable[[Any], None]:
    """Have the first reply to a script lost."""
    insist = _protocol._insist

    def prepare(script: Any) -> None:
        left = [script]

        async def losing(kit: Any, call: Any) -> Any:
            if call.script in left:
                left.remove(call.script)
                proxy.drop_next_reply()
            return await insist(kit, call)

        monkeypatch.setattr(_protocol, "_insist", losing)

    return prepare


@pytest.mark.parametrize("script", [_protocol.ENDS, _protocol.LAST], ids=lambda it: it.name)
def test_a_lost_reply_does_not_extend_twice(
    far: redis.Redis, r: redis.Redis, script: Any, lose_reply: Callable[[Any], None]
) -> None:
    """Whichever of its two replies is lost, extend adds its seconds once."""
    lock = ours(far, timeout=10)
    lock.acquire()
    lose_reply(script)
    assert lock.extend(10)
    assert 18000 < r.pttl("foo") <= 20000
    lock.release()


def test_a_lost_reply_to_the_adoption_of_a_token(
    far: redis.Redis, r: redis.Redis, lose_reply: Callable[[Any], None]
) -> None:
    """The token stands in the key although the reply that says so was lost."""
    lock = ours(far)
    lock.locked()
    lose_reply(_protocol.ADOPT)
    assert lock.acquire(token="mine")
    assert r.get("foo") == b"mine"
    lock.release()
    assert not r.exists("foo")


@pytest.mark.parametrize("reached", [False, True])
def test_an_acquire_that_breaks_at_its_token_leaves_nothing(
    r: redis.Redis, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """Interrupted before or after the token was written, the lock is free again."""
    insist = _protocol._insist

    async def interrupted(kit: Any, call: Any) -> Any:
        if reached:
            await insist(kit, call)
        raise KeyboardInterrupt

    monkeypatch.setattr(_protocol, "_insist", interrupted)
    lock = ours(r)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire(token="mine")
    assert not r.exists("foo")
    assert lock.local.token is None


@pytest.mark.parametrize("thread_local", [True, False])
def test_one_token_used_twice_still_excludes(r: redis.Redis, thread_local: bool) -> None:
    """Two lock objects with the same token do not both get the lock, nor undo each other."""
    first, second = ours(r, thread_local=thread_local), ours(r, timeout=5)
    assert first.acquire(token="same")
    assert not second.acquire(blocking=False, token="same")
    assert not second.acquire(blocking_timeout=0.1, token="same")
    assert first.owned()
    first.release()
    assert second.acquire(blocking=False, token="same")
    second.release()


def test_a_renewed_lock_keeps_its_token(r: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals go on under the token given by the user."""
    monkeypatch.setattr(_protocol, "RENEWED_LEASE_S", 0.3)
    lock = ours(r)
    assert lock.acquire(token="mine")
    time.sleep(0.7)
    assert r.get("foo") == b"mine"
    assert lock.owned()
    lock.release()


def test_a_token_passed_on_gives_the_lock_to_another_object(r: redis.Redis) -> None:
    """`local.token` set by hand (str or bytes) releases, extends and owns, as in redis-py."""
    first = ours(r, timeout=10)
    first.acquire()
    for token in (first.local.token, first.local.token.decode()):
        second = ours(r, timeout=10)
        second.local.token = token
        assert second.owned()
        assert second.extend(10, replace_ttl=True)
    second.release()
    assert second.local.token is None
    assert not r.exists("foo")
    assert not first.owned()
    second.local.token = "other"
    with pytest.raises(LockNotOwnedError):
        second.release()


def test_another_thread_sees_nothing_and_raises_only_lock_errors(r: redis.Redis) -> None:
    """With thread_local a second thread finds no token: False and LockError, no AttributeError."""
    with ours(r, timeout=10) as lock:
        assert in_thread(lambda: lock.local.token) is None
        assert in_thread(lock.owned) is False
        assert in_thread(lock.locked) is True
        for verb in (lock.release, lock.reacquire, lambda: lock.extend(1)):
            assert type(in_thread(verb)) is LockError
        assert lock.owned()


@pytest.mark.parametrize("timeout", [None, 10])
def test_another_thread_may_release_where_it_shall(r: redis.Redis, timeout: float | None) -> None:
    """With thread_local=False a second thread owns and releases what the first acquired."""
    lock = ours(r, timeout=timeout, thread_local=False)
    lock.acquire()
    assert in_thread(lock.owned) is True
    assert in_thread(lock.release) is None
    assert not r.exists("foo")
    with pytest.raises(LockError):
        lock.release()


def test_a_thread_that_lost_the_lock_does_not_release_the_next_holder(r: redis.Redis) -> None:
    """One lock object, two threads: the first one's late release leaves the second one's lock."""
    lock = ours(r, timeout=0.2)
    lock.acquire()
    time.sleep(0.25)
    lock.timeout = 10
    seen: list[bool] = []
    held, done = threading.Event(), threading.Event()

    def second() -> None:
        with lock:
            held.set()
            done.wait(5)
            seen.append(lock.owned())

    thread = threading.Thread(target=second)
    thread.start()
    assert held.wait(5)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    done.set()
    thread.join(5)
    assert seen == [True]


def test_a_late_release_does_not_wipe_the_next_token() -> None:
    """A shared place is emptied only of what was released, not of what came after it."""
    place, first, second = Place(), Grip(b"a", "a", "1", None), Grip(b"a", "a", "2", None)
    place.put(first)
    place.put(second)
    place.vacate(place, first)
    assert (place.token, place.grip) == (b"a", second)
    place.vacate(place, second)
    assert (place.token, place.grip) == (None, None)


def test_a_flow_may_acquire_again_what_it_lost(r: redis.Redis) -> None:
    """After a loss that nobody told it of, the same object acquires and releases as ever."""
    lock = ours(r)
    lock.acquire()
    r.delete("foo")
    assert lock.acquire(blocking=False)
    assert lock.owned()
    lock.release()


def test_a_lock_left_to_its_timeout_is_no_mistake(r: redis.Redis) -> None:
    """A lock with a timeout may be dropped without a release: it stays, and nothing is warned of."""
    ours(r, timeout=5).acquire()
    gc.collect()
    assert 0 < r.pttl("foo") <= 5000


@pytest.mark.parametrize(
    "keywords",
    [
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": "10"},
        {"timeout": 10**9},
        {"name": b"\xff"},
        {"name": ""},
        {"timeout": 0.001},
        {"blocking_timeout": "soon"},
    ],
    ids=str,
)
def test_what_cannot_be_right_is_refused(r: redis.Redis, keywords: dict[str, Any]) -> None:
    """UsageError, which is a ValueError, names the argument; nothing is written."""
    with pytest.raises(UsageError):
        ours(r, **keywords).acquire(blocking=True)
    assert r.dbsize() == 0


def test_a_token_that_is_not_text_is_refused(r: redis.Redis) -> None:
    """Bytes that are not UTF-8 cannot be a token: a clear UsageError."""
    lock = ours(r)
    with pytest.raises(UsageError, match="UTF-8"):
        lock.acquire(token=b"\xff")  # type: ignore[arg-type]
    lock.local.token = b"\xff"
    with pytest.raises(UsageError, match="UTF-8"):
        lock.release()
    assert r.dbsize() == 0


def test_names_may_be_bytes(r: redis.Redis) -> None:
    """A name given as bytes is the same lock as the text."""
    with ours(r, "näme".encode()) as lock:
        assert r.exists("näme")
        assert lock.name == "näme".encode()
        assert not ours(r, "näme").acquire(blocking=False)


def test_a_key_of_another_kind_is_not_taken_for_a_lock(r: redis.Redis) -> None:
    """Where the name holds a list, acquiring says so."""
    r.rpush("foo", "x")
    with pytest.raises(UsageError, match="another kind of value"):
        ours(r).acquire(blocking=False)


# ── the client behind ──────────────────────────────────────────────────────────────────────────


def test_one_client_behind_each_redis_client(r: redis.Redis, server: Server) -> None:
    """Locks made by many threads at once share one holdfast client; another client has its own."""
    kits: list[object] = []
    gate = threading.Barrier(8)

    def ask() -> None:
        gate.wait()
        kits.append(_clients.kit_of(r))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len(kits) == 8
    assert len({id(kit) for kit in kits}) == 1
    with redis.Redis(port=server.port) as other:
        assert _clients.kit_of(other) is not kits[0]


def test_the_redis_client_is_not_kept_alive(server: Server) -> None:
    """When the last lock object and the client are dropped, all that was behind them ends."""
    before = set(threading.enumerate())
    client = redis.Redis(port=server.port)
    held, late = ours(client), ours(client, blocking_timeout=0.05)
    held.acquire()
    assert not late.acquire()
    held.release()
    behind = _clients._clients[client]
    assert set(threading.enumerate()) - before
    alive = weakref.ref(client)
    del client, held, late
    gc.collect()
    assert alive() is None
    assert behind._rt.closed
    assert behind not in _clients._clients.values()
    eventually(lambda: set(threading.enumerate()) <= before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("timeout", [None, 10])
def test_a_forked_child_owns_nothing_and_can_lock(r: redis.Redis, timeout: float | None) -> None:
    """In the child the parent's lock is somebody else's, and the same client goes on working."""
    lock = ours(r, timeout=timeout)
    lock.acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, from Python 3.12
        child = os.fork()
    if child == 0:
        code = 1
        try:
            assert lock.locked()
            assert not lock.owned()
            try:
                lock.release()
            except LockNotOwnedError:
                with ours(r, "bar"):
                    code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.owned()
    lock.release()
