"""What `holdfast demo` measured, and the checks of it. Instants are ns of one shared clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from holdfast.cli._demo_messages import Done, Holding, Prolonged
from holdfast.cli._demo_messages import Report as Message

SLACK_SECONDS = 0.5
"""How much later than the lease's end the next one may be granted: it must look, and be run."""


class Turn(msgspec.Struct):
    """One grant of the lock. `done` is None if the worker did not live to report its end."""

    worker: int
    fence: int
    asked: int
    granted: int
    deadline: int
    value: int
    lingers: bool = False
    owner: str = ""
    done: Done | None = None

    @property
    def waited_ms(self) -> float:
        """How long it stood in line."""
        return (self.granted - self.asked) / 1e6

    @property
    def until(self) -> int:
        """The end of the time in which nobody else may be granted the lock.

        That is the end of the body, or the deadline of the lease if that comes first. It does for
        a worker that was killed, whose body has no end, and for one that was frozen: its body runs
        on after the deadline, but the lock has never promised it more, and says so (LockLost).
        What it does with the resource afterwards is for the fence to stop, and is counted there.
        The deadline is the one the hold itself believed in, from before the request was sent. The
        lease counted from the arrival of the grant would be longer than the server's, by the time
        the reply took.
        """
        return self.deadline if self.done is None else min(self.done.ended, self.deadline)


class History:
    """The turns of all workers, as reported."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.latest: Turn | None = None
        self._open: dict[int, Turn] = {}

    def take(self, worker: int, message: Message) -> None:
        """Record what a worker reported."""
        turn = self._open.get(worker)
        if isinstance(message, Holding):
            turn = Turn(worker, **msgspec.structs.asdict(message))
            self.turns.append(turn)
            if self.latest is None or turn.granted > self.latest.granted:
                self.latest = turn
            self._open[worker] = turn
        elif turn is not None and isinstance(message, Prolonged | Done):
            turn.deadline = max(turn.deadline, message.deadline)
            if isinstance(message, Done):
                turn.done = message
                del self._open[worker]

    def open(self, worker: int) -> Turn | None:
        """The turn that this worker is in."""
        return self._open.get(worker)

    def after(self, turn: Turn) -> Turn | None:
        """The first grant after this one, to another worker."""
        later = (t for t in self.turns if t.granted > turn.granted and t.worker != turn.worker)
        return min(later, key=lambda t: t.granted, default=None)

    def accepted(self) -> int:
        """How many increments the account took."""
        return sum(t.done is not None and t.done.accepted for t in self.turns)

    def refused(self) -> int:
        """How many it refused."""
        return sum(t.done is not None and not t.done.accepted for t in self.turns)


Pair: TypeAlias = tuple[Turn, Turn]


def _valid(turns: Sequence[Turn]) -> list[Turn]:
    # A reply that took longer than the lease begins after its deadline: such a hold never was.
    return sorted((t for t in turns if t.granted < t.until), key=lambda t: t.granted)


def overlaps(turns: Sequence[Turn]) -> list[Pair]:
    """Every turn that was granted while an earlier one still had the lock, with that one."""
    found: list[Pair] = []
    last: Turn | None = None
    for turn in _valid(turns):
        if last is not None and turn.granted < last.until:
            found.append((last, turn))
        if last is None or turn.until > last.until:
            last = turn
    return found


def disorder(turns: Sequence[Turn]) -> list[Pair]:
    """Neighbours in time whose fences do not grow."""
    return [(a, b) for a, b in itertools.pairwise(_valid(turns)) if a.fence >= b.fence]


def handovers_ms(turns: Sequence[Turn]) -> list[float]:
    """From the end of one body to the grant of the next, where that stood in line already."""
    return [
        (after.granted - before.done.ended) / 1e6
        for before, after in itertools.pairwise(_valid(turns))
        if before.done is not None and not before.done.lost and after.asked < before.done.ended
    ]


def in_line(turns: Sequence[Turn], at: int) -> list[Turn]:
    """The turns that were being waited for just before this instant, or were granted at it."""
    return [turn for turn in turns if turn.asked < at <= turn.granted]


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; 0.0 of nothing."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else 0.0
