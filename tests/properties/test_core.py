"""Properties of the pure parts: key names, leases, timers, and the queue against a plain model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.keys import aux, slot
from holdfast.core.lease import NS_PER_MS, Validity, milliseconds, renewal_ns
from holdfast.core.timers import Timers
from holdfast.locks.lock import ACQUIRE, CLAIM_MS, FENCE_MS, LEAVE, RELEASE, RENEW, Busy
from holdfast.server import Server

PARTS = ("fence", "queue", "waiters")
names = st.text(st.sampled_from("ab{}:/é0"), min_size=1, max_size=8)


@given(names)
def test_all_keys_of_a_lock_are_in_its_slot(name: str) -> None:
    """Whatever the braces. Cases 59, T24."""
    assert {slot(aux(name, part)) for part in PARTS} == {slot(name)}


@given(st.lists(names, min_size=2, max_size=30, unique=True))
def test_no_two_locks_share_a_helper_key(many: list[str]) -> None:
    """Nor is a helper the helper of another part. Case T24."""
    keys = [aux(name, part) for name in many for part in PARTS]
    assert len(set(keys)) == len(keys)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_our_slots_are_the_server_s(raw: redis.Redis, key: str) -> None:
    """Against CLUSTER KEYSLOT of a real server, any text."""
    try:
        theirs = raw.execute_command("CLUSTER", "KEYSLOT", key)
    except redis.ResponseError:
        pytest.skip("this server has no cluster commands")
    assert slot(key) == theirs


@given(
    st.integers(3, 3_600_000),
    st.floats(0, 0.4),
    st.integers(0, 10**15),
)
def test_a_lease_is_never_believed_for_longer_than_the_server_keeps_it(
    lease_ms: int, drift: float, sent: int
) -> None:
    """The slowest client clock against the fastest server clock that `drift` allows. A1."""
    believed = Validity(drift=drift).deadline(sent, lease_ms) - sent
    # rho_c and rho_s with (1 - rho_c) / (1 + rho_s) = 1 - drift: the client measures `believed`
    # while at most believed / (1 - drift) of the server's time goes by.
    assert believed / (1 - drift) <= lease_ms * NS_PER_MS


@given(st.floats(0.001, 3600))
def test_milliseconds_never_shorten(lease: float) -> None:
    """Rounded up, by less than one."""
    assert lease * 1000 - 1e-6 <= milliseconds(lease) < lease * 1000 + 1


@given(st.integers(10, 3_600_000), st.floats(0.01, 10))
def test_two_failed_renewals_fit_into_a_lease(lease_ms: int, timeout: float) -> None:
    """I <= (V - a) / (m + 1): after two attempts of the worst length the third is in time."""
    span = Validity().span_ns(lease_ms)
    interval = renewal_ns(span, timeout)
    attempt = min(timeout * 1e9, span / 6)
    assert interval > 0
    assert 3 * interval + attempt <= span + 3


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 500), st.booleans())))
def test_timers_are_due_in_time_and_never_lost(entries: list[tuple[int, int, bool]]) -> None:
    """Never late, at most a grain early; discarded ones never; and no memory is kept."""
    timers: Timers[int] = Timers()
    wanted: dict[int, tuple[int, int]] = {}
    for ident, (when, grain, discarded) in enumerate(entries):
        key = timers.add(when, grain, ident, ident)
        if discarded:
            timers.discard(key, ident)
        else:
            wanted[ident] = (when, grain)
    now = 0
    while (upcoming := timers.next_due()) is not None:
        now = max(now, upcoming)
        for ident in timers.pop_due(now):
            when, grain = wanted.pop(ident)
            assert when - grain < now <= when
    assert not wanted
    assert len(timers) == 0


class Queue(RuleBasedStateMachine):
    """The scripts on a real server against a list of owners: who holds, who is next, whose fence."""

    raw: redis.Redis
    runs = 0

    def __init__(self) -> None:
        super().__init__()
        Queue.runs += 1
        self.name = f"model-{Queue.runs}"
        self.keys = [self.name, *(aux(self.name, part) for part in PARTS)]
        self.holder: str | None = None
        self.reserved = False
        self.queue: list[str] = []
        self.fences: list[int] = []

    def run_script(self, script: object, keys: list[str], *args: str) -> object:
        tail = (str(CLAIM_MS * 100), str(FENCE_MS))
        lua, parse = script.lua, script.parse  # type: ignore[attr-defined]
        return parse(self.raw.eval(lua, len(keys), *keys, *args, *tail))

    owners = st.sampled_from([f"owner{n}" for n in range(5)])

    @rule(owner=owners, waits=st.booleans())
    def acquire(self, owner: str, waits: bool) -> None:
        patience = "60000" if waits else "0"
        inbox = f"inbox-of-{owner}"
        got = self.run_script(ACQUIRE, self.keys, owner, "600000", patience, inbox)
        if self.holder == owner:
            assert got == self.fences[-1] or self.reserved
            self.reserved = False
        elif self.holder is None:
            assert not self.queue, "a free lock has no queue: a release hands over"
            self.holder = owner
        else:
            assert isinstance(got, Busy)
            assert got.holder == self.holder
            if waits and owner not in self.queue:
                self.queue.append(owner)
            elif not waits and owner in self.queue:
                self.queue.remove(owner)
            assert not waits or got.position == self.queue.index(owner)
            return
        assert isinstance(got, int)
        if not self.fences or got != self.fences[-1]:
            self.fences.append(got)

    @rule(owner=owners)
    def release(self, owner: str) -> None:
        standing = self.run_script(RELEASE, self.keys, owner)
        assert standing.mine == (self.holder == owner)  # type: ignore[attr-defined]
        if self.holder == owner:
            self._pass_on()

    @rule(owner=owners)
    def leave(self, owner: str) -> None:
        self.run_script(LEAVE, self.keys, owner)
        if owner in self.queue:
            self.queue.remove(owner)
        if self.holder == owner:
            self._pass_on()

    @rule(owner=owners)
    def renew(self, owner: str) -> None:
        standing = self.run_script(RENEW, self.keys[:2], owner, "600000")
        assert standing.mine == (self.holder == owner)  # type: ignore[attr-defined]

    @precondition(lambda self: self.holder is not None)
    @rule()
    def delete(self) -> None:
        """Lost behind everybody's back: the next acquire hands over to the head, or takes it."""
        self.raw.delete(self.name)
        self.holder = None
        if self.queue:
            self.run_script(ACQUIRE, self.keys, "stranger", "600000", "0", "inbox-of-stranger")
            self._pass_on()

    def _pass_on(self) -> None:
        self.holder = self.queue.pop(0) if self.queue else None
        self.reserved = self.holder is not None
        if self.reserved:
            self.fences.append(int(self.raw.get(self.keys[1]).split()[0]))  # type: ignore[union-attr]

    @invariant()
    def the_server_agrees(self) -> None:
        holder = self.raw.get(self.name)
        assert (holder.decode() if holder else None) == self.holder
        queued = [owner.decode() for owner in self.raw.zrange(self.keys[2], 0, -1)]
        assert queued == self.queue
        assert all(self.raw.pttl(key) != -1 for key in self.keys)
        assert self.fences == sorted(set(self.fences))

    def teardown(self) -> None:
        self.raw.delete(*self.keys)


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.timeout(180)
def test_the_scripts_behave_like_a_list(own_server: Server) -> None:
    """Random acquires, releases, departures, renewals and deletions, compared step by step."""
    with redis.Redis.from_url(own_server.url) as raw:
        Queue.raw = raw
        machine: type[RuleBasedStateMachine] = Queue
        case = machine.TestCase
        case.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
        case("runTest").runTest()
        assert Queue.runs >= 100
