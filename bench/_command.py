"""The command line that the benchmarks share: run sections, print them, write them down."""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from _report import RESULTS, Section, save, surroundings

from holdfast.server import newest


def _options(what: str, sections: Mapping[str, object], results: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, for a look")
    parser.add_argument("--only", action="append", choices=sections, help="may be repeated")
    parser.add_argument("--json", type=Path, default=RESULTS / results, help="where to write")
    return parser.parse_args()


def _heading(around: dict[str, object]) -> str:
    peers = around["peers"]
    assert isinstance(peers, dict)
    versions = ", ".join(f"{name} {number or 'missing'}" for name, number in peers.items())
    return (
        f"holdfast {around['holdfast']} on {around['server']}, {around['python']}, "
        f"{around['cores']} x {around['cpu']}\n{versions}"
    )


def run(
    what: str,
    sections: Mapping[str, Callable[[bool], Section]],
    peers: Sequence[str],
    results: str,
) -> None:
    """Run the sections that were asked for, and write them to `results` unless told otherwise."""
    options = _options(what, sections, results)
    logging.getLogger().addHandler(logging.NullHandler())  # peers log what is expected here
    warnings.simplefilter("ignore")  # peers' own deprecations are not the subject
    around = {**surroundings(newest().label, peers), "quick": options.quick}
    print(_heading(around), flush=True)
    began = time.monotonic()
    done = []
    for name in options.only or sections:
        started = time.monotonic()
        section = sections[name](options.quick)
        section.raw["took_s"] = round(time.monotonic() - started, 1)
        done.append(section)
        print(section.text(), flush=True)
        save(options.json, around, done)
    goals = [goal for section in done for goal in section.goals]
    met = sum(goal.met is True for goal in goals)
    print(f"\n{met} of {len(goals)} goals met in this run; {time.monotonic() - began:.0f} s")
