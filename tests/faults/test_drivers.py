"""The runtimes below the protocols: many calls at once, and connections that owe replies."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import holdfast
from holdfast.core.keys import aux
from holdfast.core.script import Call
from holdfast.locks.info import INFO, Snapshot
from holdfast.server import Server
from holdfast.wire.link import Link
from holdfast.wire.pool import LinkPool
from tests.support.kit import COLOURS, Deployment, Kit, plain

OWN_KIT = True


@pytest.fixture(params=list(COLOURS))
def kit(request: pytest.FixtureRequest, server: Server, name: str) -> Any:
    """Both faces, on one server."""
    deployment = Deployment("one", server.url, lambda: plain(server.url), server=server)
    made = COLOURS[request.param](deployment, name, request.param)
    yield made
    made.raw.close()


@pytest.mark.parametrize("count", [0, 1, 128, 129, 1000])
async def test_every_call_of_a_fan_out_is_answered(kit: Kit, count: int) -> None:
    """Also where they are too many for one write: a burst of renewals after a pause. Case T12."""
    client = getattr(kit.hf, "blocking", kit.hf)
    names = [f"{kit.name}-{number}" for number in range(count)]
    for number, each in enumerate(names):
        kit.raw.set(each, f"owner-{number}", px=10_000)
    calls = [
        Call(INFO, (each, *(aux(each, part) for part in ("fence", "queue", "waiters"))), (), 5.0)
        for each in names
    ]
    answers = await client._kit.rt.fan_out(calls)
    assert all(isinstance(answer, Snapshot) for answer in answers)
    assert [answer.holder for answer in answers] == [f"owner-{n}" for n in range(count)]


def test_a_link_that_owes_a_reply_is_not_used_for_a_single_exchange(server: Server) -> None:
    """The reply that comes first there belongs to somebody who has gone on."""
    with holdfast.connect(server.url) as hf:
        hf.lock("warm").acquire().release()
        (pool,) = hf._kit.rt._pools.values()  # type: ignore[attr-defined]
        assert isinstance(pool, LinkPool)
        owing = pool.take(1)
        owing.write(b"*3\r\n$5\r\nBLPOP\r\n$7\r\nnothing\r\n$3\r\n0.5\r\n", 1)
        pool.give_owing(owing)
        taken = pool.take(1)
        assert taken is not owing
        taken.send(b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n", 1, 1)
        assert taken.read(1) == b"hi"
        for link in (owing, taken):
            link.close()


def test_a_link_counts_what_it_owes(server: Server, raw: redis.Redis) -> None:
    """Replies that nobody waits for are taken in when the link is used again, and not before."""
    with holdfast.connect(server.url) as hf:
        hf.lock("warm").acquire().release()
        (pool,) = hf._kit.rt._pools.values()  # type: ignore[attr-defined]
        link: Link = pool.take(1)
        link.write(b"*1\r\n$4\r\nPING\r\n" * 3, 3)
        assert link.owed == 3
        pool.give_owing(link)
        while (again := pool.ready(1)) is not None and again.owed:
            pool.give_owing(again)
        assert again is link
        assert link.owed == 0
        link.close()
