"""What a benchmark has to say: tables, goals, and whether the numbers meet them."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import _apart

RESULTS = Path(__file__).parent / "results"


@dataclass
class Goal:
    """A bound that a measured figure shall keep."""

    what: str
    reached: float | None
    bound: float
    at_least: bool
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        """Whether the figure keeps the bound; None if there is no figure."""
        if self.reached is None:
            return None
        return self.reached >= self.bound if self.at_least else self.reached <= self.bound

    def row(self) -> list[str]:
        """The goal as a line of the table."""
        verdict = {True: "met", False: "missed", None: "not measured"}[self.met]
        reached = "-" if self.reached is None else f"{number(self.reached)} {self.unit}"
        sign = ">=" if self.at_least else "<="
        return [self.what, f"{sign} {self.bound:g} {self.unit}", reached, verdict]


@dataclass
class Section:
    """One table with its goals and its remarks."""

    name: str
    title: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The section for people."""
        lines = ["", f"== {self.title}", ""]
        if self.rows:
            lines += [*aligned([self.columns, *self.rows]), ""]
        if self.goals:
            head = ["goal", "bound", "reached", "verdict"]
            lines += [*aligned([head, *(goal.row() for goal in self.goals)]), ""]
        lines += [f"  * {note}" for note in self.notes]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The section for programs."""
        return {
            "title": self.title,
            "columns": self.columns,
            "rows": self.rows,
            "goals": [{**asdict(goal), "met": goal.met} for goal in self.goals],
            "notes": self.notes,
            "raw": self.raw,
        }


def ratio(above: float | None, below: float | None) -> float | None:
    """One figure over another, or None where either is missing."""
    return above / below if above is not None and below else None


def number(value: Any) -> str:
    """A figure with three or four digits that mean something."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 20 else f"{value:.2f}"


def aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows of one width per column: the first column to the left, the others to the right."""
    cells = [[number(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    lines = []
    for row in cells:
        first, *rest = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join([first, *rest]).rstrip())
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
    return lines


def version(package: str) -> str | None:
    """The installed release of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _apart.version(package)


def surroundings(server: str, peers: Sequence[str]) -> dict[str, Any]:
    """Versions and machine: what a reader needs to repeat the run."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": _cores(),
        "server": server,
        "holdfast": version("holdfast"),
        "peers": {package: version(package) for package in peers},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def save(path: Path, around: dict[str, Any], sections: Sequence[Section]) -> None:
    """Write the results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {**around, "sections": {section.name: section.as_json() for section in sections}}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
