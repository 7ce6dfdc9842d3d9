"""Interleaved rounds: everybody takes a turn in every round, in an order that rotates.

A noisy machine slows everybody who runs in the noisy moment; the median over the rounds, and ratios
of medians within one run, are what such noise leaves standing.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figures:
    """What was measured of one contender, in seconds per pair."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    pairs: int = 0

    @property
    def us(self) -> float:
        """Median wall time of a pair in microseconds."""
        return statistics.median(self.wall) * 1e6

    @property
    def cpu_us(self) -> float:
        """Median CPU time of this process for a pair, in microseconds."""
        return statistics.median(self.cpu) * 1e6

    @property
    def best_us(self) -> float:
        """The quickest round."""
        return min(self.wall) * 1e6

    @property
    def per_second(self) -> float:
        """Pairs per second, from the median round."""
        return 1 / statistics.median(self.wall)


def _turns(names: list[str], rounds: int) -> Iterator[str]:
    for shift in range(rounds):
        gc.collect()
        place = shift % len(names)
        rotated = names[place:] + names[:place]
        yield from rotated if shift % 2 == 0 else rotated[::-1]


def _size(elapsed: float, tried: int, most: int, budget: float, least: int) -> int:
    """How many pairs a round may have: at most `most`, fewer where a round would be too long."""
    return max(least, min(most, int(budget / (elapsed / tried)) // least * least))


def blocking(
    runs: dict[str, Callable[[int], None]], rounds: int, most: int, budget: float
) -> dict[str, Figures]:
    """Time `run(count)` of every contender, round by round. `budget` bounds one turn, in s."""
    figures = {name: Figures() for name in runs}
    for name, run in runs.items():
        run(2)  # connections, scripts
        began = time.perf_counter()
        run(2)
        figures[name].pairs = _size(time.perf_counter() - began, 2, most, budget, 1)
    with _own_garbage():
        for name in _turns(list(runs), rounds):
            count = figures[name].pairs
            runs[name](count // 10)  # whoever ran before has the caches
            began, cpu = time.perf_counter(), time.process_time()
            runs[name](count)
            figures[name].cpu.append((time.process_time() - cpu) / count)
            figures[name].wall.append((time.perf_counter() - began) / count)
    return figures


async def asynchronous(
    runs: dict[str, Callable[[int], Awaitable[None]]],
    rounds: int,
    tasks: int,
    most: int,
    budget: float,
) -> dict[str, Figures]:
    """The same for coroutines; a turn has a multiple of `tasks` pairs."""
    figures = {name: Figures() for name in runs}
    for name, run in runs.items():
        for _ in range(2):  # the first time for connections and scripts
            began = time.perf_counter()
            await run(tasks)
            took = time.perf_counter() - began
            if took > 2 * budget:
                break  # one pair for each task is what it will have in any case
        figures[name].pairs = _size(took, tasks, most, budget, tasks)
    with _own_garbage():
        for name in _turns(list(runs), rounds):
            count = figures[name].pairs
            began, cpu = time.perf_counter(), time.process_time()
            await runs[name](count)
            figures[name].cpu.append((time.process_time() - cpu) / count)
            figures[name].wall.append((time.perf_counter() - began) / count)
    return figures


@contextmanager
def _own_garbage() -> Iterator[None]:
    """Have nobody pay for the objects of the others: the collector does not look at these.

    With everybody's clients in one process, a turn of the collector costs more than the turn that
    is timed, and whoever happens to cause it is charged for it.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def over(figures: dict[str, Figures], above: str, below: str) -> float | None:
    """The median over the rounds of the ratio within one round."""
    if above not in figures or below not in figures:
        return None
    both = zip(figures[above].wall, figures[below].wall, strict=True)
    return statistics.median(one / other for one, other in both)


def raw_figures(figures: dict[str, Figures]) -> dict[str, Any]:
    """What was measured, for programs."""
    return {
        name: {"pairs_per_round": it.pairs, "us": [round(s * 1e6, 2) for s in it.wall]}
        for name, it in figures.items()
    }
