"""Section 6: what `import holdfast` adds to a program that uses redis-py anyway."""

from __future__ import annotations

import statistics
import subprocess
import sys

from _report import Goal, Section

TIMED = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
MODULES = ("redis", "holdfast", "holdfast.aio", "redis, holdfast")


def _once(module: str) -> float:
    """Milliseconds that the import takes in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout) * 1e3


def imports(quick: bool) -> Section:
    """Section 6."""
    section = Section("import", "6. Import time")
    section.columns = ["", "ms", "best ms", "over redis-py ms"]
    rounds = 7 if quick else 21
    for module in MODULES:
        _once(module)  # compiled and cached
    taken: dict[str, list[float]] = {module: [] for module in MODULES}
    for place in range(rounds):
        for module in MODULES[:: -1 if place % 2 else 1]:
            taken[module].append(_once(module))
    over = {
        module: statistics.median(
            mine - theirs for mine, theirs in zip(taken[module], taken["redis"], strict=True)
        )
        for module in MODULES
    }
    for module, times in taken.items():
        section.rows.append(
            [f"import {module}", statistics.median(times), min(times), over[module]]
        )
    section.goals = [
        Goal("import holdfast over redis-py's own", over["holdfast"], 60, at_least=False, unit="ms")
    ]
    section.notes.append(f"Medians of {rounds} interleaved new interpreters, files cached.")
    section.raw = {module: [round(ms, 2) for ms in times] for module, times in taken.items()}
    return section
