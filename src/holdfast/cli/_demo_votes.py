"""How the servers of `holdfast demo` vote on a hold: what each of them says when it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.core.keys import GUARD
from holdfast.errors import NodeError
from holdfast.server import Server

GRANTED: Final = "granted"
"""The lock's key is there, with the owner id of the hold."""
UNREACHABLE: Final = "unreachable"
"""It does not answer."""
QUARANTINED: Final = "quarantined"
"""Its guard says that it grants nothing yet: it may have forgotten locks."""
NO_VOTE: Final = "no vote"
"""It answers, and has none of this."""


class Vote(msgspec.Struct, frozen=True):
    """What one node says. `seconds` is for how long yet it is quarantined."""

    said: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.said} {self.seconds:.1f} s" if self.said == QUARANTINED else self.said


class Moment(msgspec.Struct, frozen=True):
    """What all nodes said of one hold at one time, and what each had to say."""

    title: str
    worker: int
    fence: int
    expected: list[str]
    votes: list[Vote]

    def as_expected(self) -> bool:
        """Whether every node said what it had to."""
        return [vote.said for vote in self.votes] == self.expected


def votes(nodes: Sequence[Server], name: str, owner: str) -> list[Vote]:
    """Ask every node, on its own and not through the library, about this owner's hold."""
    return [_vote(node, name, owner) for node in nodes]


def _vote(node: Server, name: str, owner: str) -> Vote:
    try:
        if node.command("GET", name, timeout=1) == owner:
            return Vote(GRANTED)
        guard = str(node.command("GET", GUARD, timeout=1) or "- 0 0")
        facts = str(node.command("INFO", "server", timeout=1))
        clock = node.command("TIME", timeout=1)
    except NodeError:
        return Vote(UNREACHABLE)
    assert isinstance(clock, list)
    run_id, free_at_ms, _ = guard.split()
    left = int(free_at_ms) / 1000 - int(str(clock[0])) - int(str(clock[1])) / 1e6
    if f"run_id:{run_id}\r\n" in facts and left > 0:
        return Vote(QUARANTINED, round(left, 3))
    return Vote(NO_VOTE)
