"""The result of `holdfast demo`: numbers, and the invariants that did not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.cli._demo_history import (
    SLACK_SECONDS,
    History,
    Turn,
    disorder,
    handovers_ms,
    in_line,
    overlaps,
    percentile,
)
from holdfast.cli._demo_votes import Moment


class Waits(msgspec.Struct, frozen=True):
    """The waits of one worker, or of all (`worker` 0)."""

    worker: int
    pid: int
    fate: str
    turns: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Outage(msgspec.Struct, frozen=True):
    """What followed when a holder was killed, or frozen."""

    worker: int
    fence: int
    next_worker: int
    next_fence: int
    next_after_ms: float


class Late(msgspec.Struct, frozen=True):
    """What became of the write of a worker that had been frozen."""

    worker: int
    fence: int
    frozen_ms: float
    wanted: int
    accepted: bool
    found: int
    found_fence: int
    lost: str


class Report(msgspec.Struct, frozen=True):
    """All that a part found. `violations` says in words which invariants did not hold."""

    ok: bool
    server: str
    server_pids: list[int]
    lease: float
    seconds: float
    workers: list[Waits]
    total: Waits
    handover_p50_ms: float
    handover_p99_ms: float
    long_waits: int
    long_max_ms: float
    rest_p99_ms: float
    fences_increasing: bool
    overlaps: int
    late_writes_refused: int
    lost_updates: int
    counter: int
    accepted: int
    killed: Outage | None
    frozen: Outage | None
    late: Late | None
    moments: list[Moment]
    violations: list[str]


class Summary(msgspec.Struct, frozen=True):
    """The whole demo."""

    ok: bool
    seconds: float
    parts: list[Report]


class Findings(msgspec.Struct):
    """What the acts found, as they went on: accidents of workers, or moments of several servers."""

    killed: Outage | None = None
    frozen: Outage | None = None
    late: Late | None = None
    moments: list[Moment] = msgspec.field(default_factory=list)
    fates: dict[int, str] = msgspec.field(default_factory=dict)
    trouble: list[str] = msgspec.field(default_factory=list)


class Facts(msgspec.Struct, frozen=True):
    """What the report says of the run besides the history."""

    server: str
    server_pids: list[int]
    lease: float
    seconds: float
    counter: int
    pids: Mapping[int, int]


def report(history: History, findings: Findings, facts: Facts) -> Report:
    """The numbers of a run, and the verdict."""
    turns = history.turns
    steps = handovers_ms(turns)
    violations = check(history, findings, facts)
    slow, rest = _divided(history)
    return Report(
        ok=not violations,
        server=facts.server,
        server_pids=facts.server_pids,
        lease=facts.lease,
        seconds=round(facts.seconds, 3),
        workers=[_waits(turns, worker, pid, findings.fates) for worker, pid in facts.pids.items()],
        total=_waits(turns, 0, 0, {}),
        handover_p50_ms=round(percentile(steps, 0.5), 3),
        handover_p99_ms=round(percentile(steps, 0.99), 3),
        long_waits=len(slow),
        long_max_ms=round(max(slow, default=0.0), 3),
        rest_p99_ms=round(percentile(rest, 0.99), 3),
        fences_increasing=not disorder(turns),
        overlaps=len(overlaps(turns)),
        late_writes_refused=history.refused(),
        lost_updates=history.accepted() - facts.counter,
        counter=facts.counter,
        accepted=history.accepted(),
        killed=findings.killed,
        frozen=findings.frozen,
        late=findings.late,
        moments=findings.moments,
        violations=violations,
    )


def _waits(turns: Sequence[Turn], worker: int, pid: int, fates: Mapping[int, str]) -> Waits:
    own = [turn for turn in turns if worker in (0, turn.worker)]
    waits = [turn.waited_ms for turn in own]
    return Waits(
        worker=worker,
        pid=pid,
        fate=fates.get(worker, ""),
        turns=len(own),
        p50_ms=round(percentile(waits, 0.5), 3),
        p99_ms=round(percentile(waits, 0.99), 3),
        max_ms=round(max(waits, default=0.0), 3),
    )


def _divided(history: History) -> tuple[list[float], list[float]]:
    """The waits, in ms, behind a holder that kept the lock in an act, and all others."""
    slow: set[int] = set()
    for turn in history.turns:
        after = history.after(turn) if turn.lingers else None
        if after is not None:
            slow |= {t.fence for t in in_line(history.turns, after.granted)}
    waits = [(turn.fence in slow, turn.waited_ms) for turn in history.turns]
    return [ms for late, ms in waits if late], [ms for late, ms in waits if not late]


def check(history: History, findings: Findings, facts: Facts) -> list[str]:
    """Every invariant that did not hold, in words."""
    found = list(findings.trouble)
    for before, after in overlaps(history.turns):
        found.append(
            f"overlap: worker {after.worker} (fence {after.fence}) was granted the lock "
            f"{(before.until - after.granted) / 1e6:.3f} ms before worker {before.worker} "
            f"(fence {before.fence}) was through with it"
        )
    for before, after in disorder(history.turns):
        found.append(f"fences do not grow: {before.fence} was followed by {after.fence}")
    lost = history.accepted() - facts.counter
    if lost:
        found.append(
            f"lost updates: {history.accepted()} increments were accepted, "
            f"the counter stands at {facts.counter}"
        )
    if len(facts.server_pids) > 1:
        return found + _check_moments(findings.moments) + _check_losses(history)
    found += _check_outage("killed", findings.killed, facts.lease)
    found += _check_outage("frozen", findings.frozen, facts.lease)
    return found + _check_late(findings.late)


def _check_outage(what: str, outage: Outage | None, lease: float) -> list[str]:
    if outage is None:
        return [f"no worker was {what} while it held the lock"]
    if outage.next_after_ms <= (lease + SLACK_SECONDS) * 1000:
        return []
    return [
        f"after worker {outage.worker} was {what}, the next one was granted the lock only after "
        f"{outage.next_after_ms / 1000:.2f} s: the lease is {lease:g} s"
    ]


def _check_late(late: Late | None) -> list[str]:
    if late is None:
        return ["no late write was tried"]
    found: list[str] = []
    if late.accepted:
        found.append(f"the late write of worker {late.worker} (fence {late.fence}) was not refused")
    elif late.found_fence <= late.fence:
        found.append(
            f"the late write of worker {late.worker} was refused, but not by a higher fence: "
            f"{late.found_fence} <= {late.fence}"
        )
    if not late.lost:
        found.append(f"worker {late.worker} did not notice that it had lost the lock")
    return found


def _check_moments(moments: Sequence[Moment]) -> list[str]:
    found = [
        f"{moment.title}: node {node} said {vote.said!r}, and not {expected!r}"
        for moment in moments
        for node, (vote, expected) in enumerate(zip(moment.votes, moment.expected, strict=True), 1)
        if vote.said != expected
    ]
    return found if moments else ["no votes were seen"]


def _check_losses(history: History) -> list[str]:
    """Nobody freezes or dies here, so nobody loses the lock."""
    return [
        f"worker {turn.worker} (fence {turn.fence}) lost the lock: {turn.done.lost}"
        for turn in history.turns
        if turn.done is not None and turn.done.lost
    ]
