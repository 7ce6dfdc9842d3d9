"""Counting answers: when enough of them have come, what each amounts to, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.quorum import majority
from ...errors import HoldfastError
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


class Traces:
    """On which nodes there may be something of an owner, which a last word must reach.

    A node that was passed over, or surely refused, has nothing. While a question is under way it
    may be anywhere: whoever is interrupted then must clean up everywhere.
    """

    __slots__ = ("_may_be", "_under_way", "fence")

    def __init__(self, nodes: int, fence: int = 0, *, everywhere: bool = False) -> None:
        self._may_be = [everywhere] * nodes
        self._under_way = 0
        self.fence = fence
        """The largest number that was proposed for this owner."""

    def may_be_on(self, node: int) -> bool:
        return self._under_way > 0 or self._may_be[node]

    def begin(self, fence: int) -> None:
        """All nodes are about to be asked, under this number."""
        self.fence = max(self.fence, fence)
        self._under_way += 1

    def end(self, answers: Sequence[object], leaves_nothing: Callable[[object], bool]) -> None:
        """They were, and this is what they said. Not called where that was interrupted."""
        for node, answer in enumerate(answers):
            if not leaves_nothing(answer):
                self._may_be[node] = True
        self._under_way -= 1


def is_unsent(answer: object) -> bool:
    """Whether the question surely had no effect on the node."""
    return isinstance(answer, HoldfastError) and not getattr(answer, "sent", False)
