"""Majorities: how many nodes decide, until when they vouch, and which fence to propose.

    q = N // 2 + 1
    d_i = t_i + (lease - step - skew) * k - 2 ms      for every node i known to have accepted
    D   = the q-th largest d_i                        the holder believes in its lock before D

Until D at least q nodes hold the owner's key, so nobody else can find q that accept: 2 q > N. The
argument speaks of instants, so it covers renewals, nodes that join later, and late replies.

Fences over several nodes are ballots: the client proposes a number, a node accepts it only while
the lock is free there and the number is larger than any it has accepted. Two grants share a node,
and there the later one was larger. See docs/redlock.md.
"""

from __future__ import annotations

from collections.abc import Iterable


def majority(nodes: int) -> int:
    """How many of `nodes` decide: more than half of them, also where their number is even."""
    return nodes // 2 + 1


def vouched_until(deadlines: Iterable[int], quorum: int) -> int:
    """D: the instant until which `quorum` of the nodes, each sure until its own, vouch together."""
    return sorted(deadlines, reverse=True)[quorum - 1]


class Ballots:
    """Proposes fences: microseconds of the wall clock, or more where others are ahead of it.

    A client whose clock is behind would be refused once for every grant that it did not see. So it
    remembers by how much it was behind.
    """

    __slots__ = ("_ahead_us", "_last")

    def __init__(self) -> None:
        self._ahead_us = 0
        self._last = 0

    @property
    def latest(self) -> int:
        """No larger fence was proposed so far."""
        return self._last

    def propose(self, wall_us: int) -> int:
        """The next fence to propose: larger than those before, and than all that were seen."""
        self._last = max(self._last + 1, wall_us + self._ahead_us)
        return self._last

    def refused(self, accepted: int, wall_us: int) -> None:
        """A node has accepted `accepted` already: the next proposal is larger."""
        self._last = max(self._last, accepted)
        self._ahead_us = max(self._ahead_us, accepted + 1 - wall_us)
