"""Locks measured: `python bench/lock.py [--quick] [--only SECTION] [--json FILE]`.

Starts its own servers, measures holdfast and its peers in interleaved rounds, and says for every
goal whether the numbers of this run meet it. Everything is a ratio within one run, or a count.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import _contended
import _idle
import _imports
import _pairs
from _report import RESULTS, Section, save, surroundings

from holdfast.server import newest

SECTIONS: dict[str, Callable[[bool], Section]] = {
    "blocking": _pairs.blocking,
    "asyncio": _pairs.asynchronous,
    "contended": _contended.contended,
    "waiting": _idle.waiting,
    "renewal": _idle.renewing,
    "import": _imports.imports,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, for a look")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be repeated")
    parser.add_argument("--json", type=Path, default=RESULTS / "lock.json", help="where to write")
    return parser.parse_args()


def _heading(around: dict[str, object]) -> str:
    peers = around["peers"]
    assert isinstance(peers, dict)
    versions = ", ".join(f"{name} {number or 'missing'}" for name, number in peers.items())
    return (
        f"holdfast {around['holdfast']} on {around['server']}, {around['python']}, "
        f"{around['cores']} x {around['cpu']}\n{versions}"
    )


def main() -> None:
    """Run the sections that were asked for."""
    options = _options()
    logging.getLogger().addHandler(logging.NullHandler())  # peers log what is expected here
    warnings.simplefilter("ignore")  # peers' own deprecations are not the subject
    around = {**surroundings(newest().label), "quick": options.quick}
    print(_heading(around), flush=True)
    began = time.monotonic()
    sections = []
    for name in options.only or SECTIONS:
        started = time.monotonic()
        section = SECTIONS[name](options.quick)
        section.raw["took_s"] = round(time.monotonic() - started, 1)
        sections.append(section)
        print(section.text(), flush=True)
        save(options.json, around, sections)
    goals = [goal for section in sections for goal in section.goals]
    met = sum(goal.met is True for goal in goals)
    print(f"\n{met} of {len(goals)} goals met in this run; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
