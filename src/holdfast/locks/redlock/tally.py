"""Counting answers: when enough of them have come, and what each amounts to."""

from __future__ import annotations

from collections.abc import Callable

from ...core.quorum import majority
from ..terms import Standing
from .node import GRANTED, Vote


def is_grant(answer: object) -> bool:
    return isinstance(answer, Vote) and answer.kind == GRANTED


def is_mine(answer: object) -> bool:
    return isinstance(answer, Standing) and answer.mine


def is_denial(answer: object) -> bool:
    return isinstance(answer, Standing) and not answer.mine


def is_standing(answer: object) -> bool:
    return isinstance(answer, Standing)


class Tally:
    """Counts answers until they decide: a majority is good, or so many are bad that none can be."""

    __slots__ = ("_bad", "_good", "_is_bad", "_is_good", "_quorum", "_rest")

    def __init__(
        self,
        nodes: int,
        is_good: Callable[[object], bool],
        is_bad: Callable[[object], bool] = lambda _: True,
    ) -> None:
        self._quorum = majority(nodes)
        self._rest = nodes - self._quorum
        self._is_good, self._is_bad = is_good, is_bad
        self._good = self._bad = 0

    def add(self, answer: object) -> bool:
        """Count one answer. True once it is decided."""
        if self._is_good(answer):
            self._good += 1
        elif self._is_bad(answer):
            self._bad += 1
        return self._good >= self._quorum or self._bad > self._rest
