"""One node of a quorum: what its scripts promise, whatever arrives, however late, and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.keys import GUARD, aux
from holdfast.core.script import Script
from holdfast.locks.lock import FENCE_MS
from holdfast.locks.redlock import node
from holdfast.locks.redlock.node import (
    ACQUIRE,
    BEHIND,
    BOOTSTRAP,
    FORCE,
    GRANTED,
    GUARD_MS,
    LEAVE,
    MISMATCH,
    QUARANTINED,
    RELEASE,
    RENEW,
    TAKEN,
)
from holdfast.server import Server, ServerBinary
from tests.support.kit import plain

INBOX = "holdfast:inbox:test"


class Node:
    """A real server, spoken to in the words of the scripts."""

    def __init__(self, raw: redis.Redis, name: str) -> None:
        self.raw = raw
        self.name = name
        self.keys = (name, aux(name, "fence"), aux(name, "queue"), GUARD)
        self.quarantine = 0
        self.run_id = "run-1"

    def _run(self, script: Script[Any], *args: object, keys: tuple[str, ...] = ()) -> Any:
        keys = keys or self.keys
        return script.parse(self.raw.eval(script.lua, len(keys), *keys, *map(str, args)))

    def acquire(
        self, owner: str, fence: int, life: int = 30_000, patience: int = 0, waited: int = 0
    ) -> Any:
        return self._run(
            ACQUIRE, owner, FENCE_MS, fence, life, patience, waited, INBOX, *self._guard()
        )

    def renew(self, owner: str, fence: int, life: int = 30_000) -> Any:
        return self._run(RENEW, owner, FENCE_MS, fence, life, *self._guard())

    def release(self, owner: str, fence: int) -> Any:
        return self._run(RELEASE, owner, FENCE_MS, fence, INBOX)

    def leave(self, owner: str, fence: int, *, stays: bool = False) -> Any:
        return self._run(LEAVE, owner, FENCE_MS, fence, INBOX, int(stays))

    def force(self, owner: str, fence: int) -> Any:
        return self._run(FORCE, owner, FENCE_MS, fence)

    def bootstrap(self) -> Any:
        return self._run(BOOTSTRAP, self.quarantine, GUARD_MS, self.run_id, keys=(GUARD,))

    def info(self) -> Any:
        return self._run(node.INFO)

    def _guard(self) -> tuple[object, ...]:
        return self.quarantine, GUARD_MS, self.run_id

    def owner(self) -> str | None:
        found: bytes | None = self.raw.get(self.name)  # type: ignore[assignment]
        return None if found is None else found.decode()


@pytest.fixture
def one(binary: ServerBinary, fleet: Any, name: str) -> Iterator[Node]:
    """A node on every kind of server."""
    server: Server = fleet.server(binary)
    with plain(server.url) as raw:
        yield Node(raw, name)


def test_a_larger_fence_is_accepted_and_nothing_else(one: Node) -> None:
    """The ballot: free and larger, or mine and not smaller; all keys have a TTL. Cases 12, T59."""
    assert one.acquire("a", 100).kind == GRANTED
    assert (one.acquire("b", 200).kind, one.acquire("b", 200).holder) == (TAKEN, "a")
    assert one.acquire("a", 100).kind == GRANTED  # asked again: the reply was lost
    assert one.acquire("a", 101).kind == GRANTED
    assert one.acquire("a", 100).kind == BEHIND
    one.release("a", 101)
    late = one.acquire("b", 101)
    assert (late.kind, late.number) == (BEHIND, 101)
    assert one.acquire("b", 102, patience=5000).kind == GRANTED
    assert one.acquire("c", 103, patience=5000).kind == TAKEN
    assert one.info().fence == 102
    assert one.info().waiters == ("c",)
    for key in one.keys[:3]:
        assert one.raw.pttl(key) > 0, key


def test_an_acquire_that_comes_after_its_release_takes_nothing(one: Node) -> None:
    """The release went by another connection and was faster: the straggler finds itself over."""
    one.release("a", 100)
    assert one.acquire("a", 100).kind == BEHIND
    assert one.owner() is None
    one.leave("b", 200)
    assert one.acquire("b", 150).kind == BEHIND
    assert one.acquire("b", 200).kind == BEHIND
    assert one.owner() is None


def test_a_give_back_that_comes_late_does_not_undo_a_later_vote(one: Node) -> None:
    """Lost with 100, asked to give that back, won with 200: the late give-back changes nothing."""
    assert one.acquire("a", 100).kind == GRANTED
    assert one.acquire("a", 200).kind == GRANTED
    assert not one.leave("a", 100, stays=True).mine
    assert one.owner() == "a"
    one.leave("b", 300, stays=True)  # somebody else's promise does not change that
    assert not one.leave("a", 100, stays=True).mine
    assert one.owner() == "a"
    assert one.leave("a", 200, stays=True).mine
    assert one.owner() is None


def test_a_renewal_that_comes_after_the_release_revives_nothing(one: Node) -> None:
    """It was under way on another connection while the hold was given back. Cases 46, T01, T09."""
    one.acquire("a", 100)
    assert one.release("a", 100).mine
    assert not one.renew("a", 100).mine
    assert one.owner() is None
    one.release("b", 200)  # the node never had b's key: the same
    assert not one.renew("b", 200).mine
    one.acquire("c", 300)
    one.leave("c", 300)
    assert not one.renew("a", 100).mine
    assert one.owner() is None


def test_a_hold_ended_by_force_stays_ended_and_learns_why(one: Node) -> None:
    """Neither a renewal nor a late acquire brings it back; a release twice says it twice. Case 42."""
    one.acquire("a", 100)
    assert one.force("a", 100).mine
    assert one.acquire("a", 100).kind == BEHIND
    renewal = one.renew("a", 100)
    assert (renewal.mine, renewal.forced) == (False, True)
    for _ in range(2):
        release = one.release("a", 100)
        assert (release.mine, release.forced) == (False, True)
    assert not one.force("a", 100).mine


def test_force_ends_whom_it_names_and_nobody_else(one: Node) -> None:
    """A node that hears of it late leaves the successor alone; a straggler of the old one is over."""
    one.acquire("new", 200)
    late = one.force("old", 100)
    assert (late.mine, late.holder) == (False, "new")
    assert one.renew("new", 200).mine
    one.release("new", 200)
    other = Node(one.raw, f"{one.name}-2")
    assert not other.force("old", 100).mine  # before the acquire that it ends
    assert other.acquire("old", 100).kind == BEHIND
    assert other.owner() is None
    assert all(one.raw.pttl(key) > 0 for key in other.keys[:3] if one.raw.exists(key))


def test_a_node_that_has_no_key_joins_and_says_so(one: Node) -> None:
    """It vouches from now on, and the holder learns that it did not before; numbers do not shrink."""
    one.acquire("a", 100)
    assert (one.renew("a", 100).mine, one.renew("a", 100).anew) == (True, False)
    one.raw.delete(one.name)
    joined = one.renew("a", 100)
    assert (joined.mine, joined.anew) == (True, True)
    assert one.owner() == "a"
    one.raw.delete(one.name)
    one.leave("b", 500)
    assert one.renew("a", 100).mine  # b lost its vote: that takes nothing from a
    one.release("a", 100)
    assert one.acquire("c", 400).kind == BEHIND
    one.acquire("c", 501)
    denied = one.renew("a", 100)
    assert (denied.mine, denied.holder) == (False, "c")


def test_a_renewal_never_shortens(one: Node) -> None:
    """It sets the life from now on, unless more is left. Cases 43, B7."""
    one.acquire("a", 100, life=60_000)
    one.renew("a", 100, life=1_000)
    assert one.raw.pttl(one.name) > 50_000
    one.renew("a", 100, life=90_000)
    assert 80_000 < one.raw.pttl(one.name) <= 90_000


def test_an_acquire_that_comes_late_does_not_shorten_what_was_extended(one: Node) -> None:
    """Its reply was not waited for, and the hold was extended by another connection. Cases 43, B7."""
    one.acquire("a", 100, life=10_000)
    one.renew("a", 100, life=60_000)
    assert one.acquire("a", 100, life=10_000).kind == GRANTED
    assert one.raw.pttl(one.name) > 50_000


def test_a_killed_process_with_many_waiters_is_passed_over_at_once(one: Node) -> None:
    """Its inbox is asked once, and the first waiter of another process is told. Case T38."""
    with one.raw.pubsub() as ears:
        ears.subscribe(INBOX)
        assert ears.get_message(timeout=5)
        one.acquire("a", 100)
        one.raw.zadd(one.keys[2], {f"dead-{n}\nholdfast:inbox:nobody": n for n in range(1, 400)})
        one.acquire("alive", 101, patience=5000)
        one.release("a", 100)
        assert _next(ears) == b"alive"


def test_who_came_first_is_told_and_dead_inboxes_are_passed_over(one: Node) -> None:
    """In the order in which they began to wait, measured without their clocks. Cases T38, T43."""
    with one.raw.pubsub() as ears:
        ears.subscribe(INBOX)
        assert ears.get_message(timeout=5)
        one.acquire("a", 100)
        one.acquire("late", 101, patience=5000, waited=1_000)
        one.acquire("early", 101, patience=5000, waited=900_000)
        one.raw.zadd(one.keys[2], {"dead\nholdfast:inbox:nobody": 1})
        one.release("a", 100)
        assert _next(ears) == b"early"
        assert one.acquire("late", 102, patience=5000, life=700).kind == GRANTED
        assert one.info().waiters == ()
        one.acquire("next", 103, patience=5000)
        one.release("late", 102)
        assert _next(ears) == b"next"


def test_whoever_is_next_is_told_when_the_key_ends(one: Node) -> None:
    """A crashed holder costs its lease: nobody announces that it ended. Cases 18, T27."""
    with one.raw.pubsub() as ears:
        ears.subscribe(INBOX)
        assert ears.get_message(timeout=5)
        one.acquire("a", 100)
        one.acquire("c", 101, patience=5000)
        one.raw.delete(one.name)
        one.acquire("b", 102, life=700)
        assert _next(ears) == b"c\n701"


def _next(ears: Any) -> bytes:
    message = ears.get_message(timeout=5)
    assert message is not None
    data: bytes = message["data"]
    return data


# ── the guard ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def guarded(binary: ServerBinary, name: str) -> Iterator[Node]:
    """A node with a quarantine of 300 ms, on a server of its own: the guard is one key of it."""
    with Server(binary) as server, plain(server.url) as raw:
        made = Node(raw, name)
        made.quarantine = 300
        yield made


def _passed(one: Node) -> bool:
    return one.acquire("waits", 10_000).kind == GRANTED


def test_a_new_node_grants_nothing_until_the_quarantine_is_over(guarded: Node) -> None:
    """It cannot know what it has forgotten: no grant, no joining, and it says for how long."""
    vote = guarded.acquire("a", 100)
    assert vote.kind == QUARANTINED
    assert vote.number == 300
    joined = guarded.renew("a", 100)
    assert joined.kind == QUARANTINED
    assert guarded.owner() is None
    assert "grants nothing for 0.3 s more" in str(vote)
    _wait_for(lambda: _passed(guarded), 0.25)
    assert guarded.raw.pttl(GUARD) > 300 * 24 * 3600 * 1000


def test_a_restarted_or_flushed_node_does_the_same(guarded: Node) -> None:
    """Another run id, or no guard at all: it may have forgotten; what it has is kept. Case T57."""
    guarded.bootstrap()
    assert guarded.acquire("a", 100).kind == GRANTED
    guarded.run_id = "run-2"
    assert guarded.renew("a", 100).mine  # a key that is there was not forgotten
    assert guarded.acquire("a", 101).kind == GRANTED
    assert guarded.acquire("b", 200).kind == TAKEN
    guarded.release("a", 101)
    assert guarded.acquire("b", 200).kind == QUARANTINED
    _wait_for(lambda: _passed(guarded), 0.25)
    guarded.raw.flushall()
    assert guarded.acquire("b", 20_000).kind == QUARANTINED


def test_a_quarantine_is_not_prolonged_by_asking(guarded: Node) -> None:
    """Each question would start it anew if the guard were written each time."""
    for _ in range(10):
        last = guarded.acquire("a", 100)
        guarded.raw.ping()
    assert last.kind == QUARANTINED
    assert last.number <= 301  # rounded up; whether it ends is what is shown
    _wait_for(lambda: _passed(guarded), 0.2)


def test_bootstrap_declares_it_clean_and_fixes_the_longest_lease(guarded: Node) -> None:
    """Granted at once; a client that was told another longest lease is refused until all agree."""
    assert guarded.bootstrap() == ""
    assert guarded.acquire("a", 100).kind == GRANTED
    guarded.release("a", 100)
    guarded.quarantine = 500
    vote = guarded.acquire("b", 200)
    assert (vote.kind, vote.number) == (MISMATCH, 300)
    assert "0.3 s" in str(vote)
    assert guarded.renew("b", 200).kind == MISMATCH
    assert guarded.bootstrap() == "run-1 0 300"
    assert guarded.acquire("b", 200).kind == GRANTED


def test_the_longer_of_two_quarantines_counts(guarded: Node) -> None:
    """A restart that is first seen by a client with a shorter longest lease."""
    guarded.bootstrap()
    guarded.run_id, guarded.quarantine = "run-2", 100
    assert guarded.acquire("a", 100).number == 300


def _wait_for(condition: Any, at_least: float) -> None:
    import time

    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 5
        time.sleep(0.005)
    assert time.monotonic() - began >= at_least


# ── any order ──────────────────────────────────────────────────────────────────────────────────


class Life:
    """What one acquire sends in its life: some lost votes, then a hold or giving up."""

    def __init__(self, owner: str, fences: list[int], *, wins: bool) -> None:
        self.owner, self.wins, self.last = owner, wins, fences[-1]
        self.sent: list[tuple[str, int]] = []
        for fence in fences[:-1]:
            self.sent += [("acquire", fence), ("stay", fence)]
        self.sent.append(("acquire", self.last))
        self.sent += [("renew", self.last), ("release", self.last)] if wins else []
        self.sent += [] if wins else [("leave", self.last)]


def _lives(counts: list[int], wins: list[bool]) -> list[Life]:
    # Numbers of different owners are interleaved, and the later ones are larger.
    made, number = [], 100
    for index, (count, wins_it) in enumerate(zip(counts, wins, strict=True)):
        fences = [number + 7 * i + index for i in range(count)]
        made.append(Life("abc"[index], fences, wins=wins_it))
        number += 3
    return made


@st.composite
def _arrivals(draw: st.DrawFn) -> tuple[list[Life], list[tuple[int, str, int]]]:
    counts = draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))
    lives = _lives(counts, draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    sent = [(index, *message) for index, life in enumerate(lives) for message in life.sent]
    again = draw(st.lists(st.sampled_from(sent), max_size=6))
    arrivals = list(draw(st.permutations(sent + again)))
    for _ in range(draw(st.integers(0, 3))):
        arrivals.insert(draw(st.integers(0, len(arrivals))), (0, "expire", 0))
    return lives, arrivals


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=_arrivals())
def test_in_any_order_nothing_that_was_ended_comes_back(
    raw: redis.Redis, story: tuple[list[Life], list[tuple[int, str, int]]]
) -> None:
    """Three acquires, all that they send arriving in any order and twice: over is over. T01, T18."""
    lives, arrivals = story
    one = Node(raw, "any-order")
    raw.delete(*one.keys[:3])
    ended: set[str] = set()
    taken, who_took = 0, ""
    for index, verb, fence in arrivals:
        owner, before = lives[index].owner, one.owner()
        if verb == "acquire":
            if one.acquire(owner, fence).kind == GRANTED:
                assert before in {None, owner}
                assert fence > taken or (owner == who_took and fence == taken)
                taken, who_took = fence, owner
        elif verb == "renew":
            answer = one.renew(owner, fence)
            assert answer.mine == (one.owner() == owner)
            assert not answer.mine or answer.anew == (before is None)
            if answer.anew:
                taken, who_took = max(fence, taken), owner
        elif verb == "release":
            one.release(owner, fence)
            ended.add(owner)
        elif verb == "expire":
            raw.delete(one.name)
            continue
        else:
            one.leave(owner, fence, stays=verb == "stay")
            if verb == "leave":
                ended.add(owner)
            if before == owner and taken > fence and who_took == owner:
                assert one.owner() == owner, "a late give-back undid a later vote"
        assert one.owner() not in ended, f"{verb} of {owner} with {fence} revived it"
        if before not in {None, owner}:
            assert one.owner() == before, "somebody else's lock is nobody else's business"
