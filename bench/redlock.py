"""Redlock measured: `python bench/redlock.py [--quick] [--only SECTION] [--json FILE]`.

Starts its own servers, one, three or five that know nothing of each other; measures holdfast, other
libraries and the raw fan-out in interleaved rounds, and says for every goal whether the numbers of
this run meet it. Everything is a ratio within one run.
"""

from __future__ import annotations

from collections.abc import Callable

import _command
import _far
import _silent
import _votes
from _report import Section

PEERS = (
    "redis",
    "hiredis",
    "pottery",
    "redlock-ng",
    "redlock-py",
    "redlock",
    "aioredlock",
    "aioredis",
)
SECTIONS: dict[str, Callable[[bool], Section]] = {
    "latency": _votes.latency,
    "throughput": _votes.throughput,
    "silent": _silent.silent,
    "far": _far.far,
}


if __name__ == "__main__":
    _command.run("Redlock measured.", SECTIONS, PEERS, "redlock.json")
