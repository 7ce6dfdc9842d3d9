"""Bad input: a clear error before anything is sent, with the offending value and the fix."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import holdfast
import holdfast.aio
from holdfast import errors
from holdfast.server import Server

NOWHERE = "redis://127.0.0.1:1/0"  # nothing listens there: whatever is sent would fail otherwise


@pytest.fixture(params=["blocking", "asyncio"])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a lock on a client that cannot reach anything."""
    connect: Any = holdfast.connect if request.param == "blocking" else holdfast.aio.connect
    return connect(NOWHERE).lock  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "must not be empty"),
        ({"name": b"bytes"}, "must be a str, not bytes"),
        ({"name": None}, "must be a str"),
        ({"name": "x" * 1025}, "1025 characters"),
        ({"name": "\udc80"}, "UTF-8"),
        ({"lease": 0}, "lease=0 is too small"),
        ({"lease": -1}, "lease=-1 is too small"),
        ({"lease": 0.0005}, "lease=0.0005 is too small"),
        ({"lease": 0.001}, "could never be believed"),
        ({"lease": timedelta(seconds=-1)}, "too small"),
        ({"lease": 10**400}, "more than 60 digits is too large"),
        ({"wait": float("inf")}, "None is without bound"),
        ({"max_hold": float("inf")}, "None is without bound"),
        ({"lease": 3601}, "lease=3601 is too large: at most 3600 s"),
        ({"lease": 2**53}, "too large"),
        ({"lease": float("nan")}, "NaN"),
        ({"lease": float("inf")}, "too large"),
        ({"lease": "30"}, "must be seconds.*not str: '30'"),
        ({"lease": True}, "not bool"),
        ({"lease": None}, "not NoneType"),
        ({"wait": -0.1}, "wait=-0.1 is too small"),
        ({"wait": float("nan")}, "NaN"),
        ({"wait": "5"}, "must be seconds"),
        ({"renew": 1}, "renew=1 must be True or False"),
        ({"max_hold": 0}, "max_hold=0 is too small"),
        ({"grace": -1}, "grace=-1 is too small"),
        ({"grace": 10**9}, "grace=1000000000 is too large"),
        ({"acks": 0}, "acks=0 must be"),
        ({"acks": "some"}, "acks='some' must be"),
        ({"acks": True}, "acks=True must be"),
        ({"on_lost": "explode"}, "on_lost='explode' must be"),
        ({"label": 7}, "label=7 must be"),
        ({"label": "two\nlines"}, "printable"),
        ({"label": "x" * 201}, "at most 200"),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused_before_any_io(
    make: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    """Names, leases, waits, policies: UsageError, a ValueError too. Cases 10, 57, B10, T23."""
    arguments = {"name": "good"} | options
    name = arguments.pop("name")
    with pytest.raises(holdfast.UsageError, match=says) as caught:
        make(name, **arguments)
    assert isinstance(caught.value, ValueError)


def test_waits_are_checked_where_they_are_given() -> None:
    """`acquire(wait=)` checks like the lock itself, in both faces, before anything is sent. T23."""
    lock = holdfast.connect(NOWHERE).lock("x")
    other = holdfast.aio.connect(NOWHERE).lock("x")
    for bad in (-1, float("nan"), "soon", True, float("inf"), 10**400, 1e300):
        with pytest.raises(holdfast.UsageError):
            lock.acquire(wait=bad)  # type: ignore[arg-type]
        with pytest.raises(holdfast.UsageError):
            asyncio.run(other.acquire(wait=bad))  # type: ignore[arg-type]


def test_extensions_and_timeouts_are_checked_where_they_are_given(
    server: Server, name: str
) -> None:
    """`extend(lease)` and `lost.wait(timeout)`: refused, and the hold is as it was. Case T23."""
    with holdfast.connect(server.url) as hf, hf.lock(name, lease=20, renew=False) as hold:
        for bad in (0, -1, float("nan"), "soon", True, None, float("inf"), 10**400, 3601):
            with pytest.raises(holdfast.UsageError):
                hold.extend(bad)  # type: ignore[arg-type]
            if bad not in {0, None, 3601, True}:
                with pytest.raises(holdfast.UsageError):
                    hold.lost.wait(bad)  # type: ignore[arg-type]
        assert 19 < hold.remaining() < 20
        assert hold.lost.wait(timedelta(milliseconds=1)) is False
        assert int(server.command("PTTL", name)) > 19_000  # type: ignore[arg-type]


def test_leases_and_waits_beyond_what_fits_into_32_bits_work(server: Server, name: str) -> None:
    """30 days are more than 2^31 ms; a patience of 126 years is as good as none. Case T23."""
    month = timedelta(days=30)
    with (
        holdfast.connect(server.url, max_lease=month) as hf,
        hf.lock(name, lease=month, wait=4 * 10**9) as hold,
    ):
        assert int(server.command("PTTL", name)) > 2**31  # type: ignore[arg-type]
        assert hf.lock(name).try_acquire() is None
        assert hold.remaining() > 29 * 24 * 3600


@pytest.mark.parametrize("lease", [0.004, 0.05, 1, 2.5, 3600, timedelta(minutes=5)])
def test_every_lease_that_can_be_believed_is_taken(server: Server, name: str, lease: Any) -> None:
    """From a few milliseconds to the limit: accepted, and the server's TTL is right. 57, T23."""
    with holdfast.connect(server.url) as hf:
        lock = hf.lock(name, lease=lease, wait=0, on_lost="ignore")
        try:
            with lock as hold:
                assert hold.remaining() <= (
                    lease.total_seconds() if isinstance(lease, timedelta) else lease
                )
        except holdfast.LockTimeout:
            assert lease == 0.004  # a busy machine may need longer for one round trip


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("localhost:6379", "is not a server URL"),
        ("http://localhost", "unknown scheme"),
        ("redis+magic://x", "unknown scheme"),
        ("redis://localhost:port/0", "cannot be read|Port"),
        ("redis+sentinel://host:26379", "must name the service"),
        ("redis+sentinel://host/", "must name the service"),
        ("redis+cluster://host:7000/3", "only database 0"),
        ("redis+cluster://", "names no host"),
        ("redis+cluster://a:b:c", "host:port"),
        (None, "cannot connect to None"),
        (42, "cannot connect to 42"),
        ([], "at least two primaries"),
        (["redis://a"], "at least two primaries"),
        (["redis://a", "redis://b", "redis://a:6379/0"], "given 2 times"),
        (["redis://a", "redis+cluster://b:7000"], "cannot vote in a quorum"),
        (["redis://a", "embedded:"], "not a server URL"),
        (["redis://a", None], "cannot connect to None"),
    ],
    ids=str,
)
def test_a_bad_target_is_refused_with_the_right_form(target: Any, says: str) -> None:
    """URLs and clients are checked when the client is made; nothing is sent."""
    for connect in (holdfast.connect, holdfast.aio.connect):
        with pytest.raises(holdfast.UsageError, match=says):
            connect(target)


def test_a_client_of_the_other_colour_is_refused() -> None:
    """A blocking client cannot serve asyncio, nor the other way round: the error says which."""
    with pytest.raises(holdfast.UsageError, match=r"use holdfast.connect\(\)"):
        holdfast.aio.connect(redis.Redis())
    with pytest.raises(holdfast.UsageError, match=r"use holdfast.aio.connect\(\)"):
        holdfast.connect(redis.asyncio.Redis())


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"timeout": "2"}, {"drift": 0.6}, {"drift": -1}, {"max_lease": 0},
     {"clock_step": -1}, {"clock_step": float("inf")}, {"timeout": 10**400}, {"replica_skew": float("nan")}],
    ids=str,
)  # fmt: skip
def test_bad_settings_of_a_client_are_refused(options: dict[str, Any]) -> None:
    """Timeouts, drift and limits are checked as well."""
    with pytest.raises(holdfast.UsageError):
        holdfast.connect(NOWHERE, **options)


def test_decorating_the_wrong_kind_of_function_is_refused() -> None:
    """A blocking lock on a coroutine function would release before it runs: refused. Case 5."""
    blocking, aio = holdfast.connect(NOWHERE).lock("x"), holdfast.aio.connect(NOWHERE).lock("x")

    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    def plain() -> None: ...

    for lock, function in [(blocking, coroutine), (blocking, generator), (aio, plain)]:
        with pytest.raises(holdfast.UsageError):
            lock(function)


ERRORS = [
    errors.NodeError("m", node="n", sent=True, name="x"),
    errors.NotReplicated("m", wanted=2, got=1, name="x"),
    errors.QuorumError("m", votes={"a": "taken"}, name="x"),
    errors.LockTimeout("m", waited=1.5, holder="h", name="x"),
    errors.LockLost("m", reason="expired", result=[1], name="x"),
    errors.UsageError("m", name="x"),
    errors.ServerNotFound("m"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_errors_survive_pickling_with_their_facts(error: holdfast.HoldfastError) -> None:
    """Through process pools and task queues nothing is lost. Case 5."""
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)


def test_errors_are_what_their_users_catch() -> None:
    """The standard classes that people catch: ValueError, ConnectionError, TimeoutError."""
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.NodeError, ConnectionError)
    assert issubclass(errors.NodeError, errors.Unavailable)
    assert issubclass(errors.LockTimeout, TimeoutError)
    assert not issubclass(errors.LockLost, errors.LockTimeout)


def test_options_of_a_url_may_contain_slashes() -> None:
    """Certificates are files: the path of a query is not the path of the URL, for every scheme."""
    for url in (
        "rediss://h:1/0?ssl_ca_certs=/etc/ca.pem",
        "rediss+cluster://h:1,h:2?ssl_ca_certs=/etc/ca.pem",
        "rediss+cluster://h:1,h:2/0?ssl_ca_certs=/etc/ca.pem",
        "rediss+sentinel://h:1,h:2/service/2?ssl_ca_certs=/etc/ca.pem",
    ):
        with holdfast.connect(url) as hf:
            endpoint = hf._rt.deployments[0].seed  # type: ignore[attr-defined]
            assert endpoint._kwargs["ssl_ca_certs"] == "/etc/ca.pem", url
