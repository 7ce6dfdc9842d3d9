"""The last picture of `holdfast demo`: the table of turns and waits, and the verdict."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli._demo_report import Report, Waits


def show(result: Report) -> None:
    """Print it, for people: in colour on a terminal, else as plain ASCII."""
    terminal = sys.stdout.isatty()
    plain = Console(force_terminal=False, color_system=None, width=100)
    console = Console() if terminal else plain
    console.print()
    console.print(_table(result, plain=not terminal))
    console.print()
    for line in _lines(result):
        console.print(line, soft_wrap=not terminal)
    console.print()
    for violation in result.violations:
        console.print(Text(f"VIOLATED  {violation}", "bold red"), soft_wrap=not terminal)
    if result.ok:
        console.print(Text(f"Every invariant held, in {result.seconds:.1f} s.", "bold green"))


def _table(result: Report, *, plain: bool) -> Table:
    table = Table(box=None if plain else box.SIMPLE_HEAD, show_footer=True)
    table.show_edge = table.pad_edge = False
    total = _cells(result.total)
    table.add_column("process", footer="all")
    names = ("turns", "wait p50 ms", "wait p99 ms", "largest ms")
    for name, footer in zip(names, total, strict=True):
        table.add_column(name, footer=footer, justify="right")
    table.add_column("")
    for waits in result.workers:
        table.add_row(f"worker {waits.worker}", *_cells(waits), waits.fate)
    return table


def _cells(waits: Waits) -> tuple[str, str, str, str]:
    return (
        str(waits.turns),
        f"{waits.p50_ms:.1f}",
        f"{waits.p99_ms:.1f}",
        f"{waits.max_ms:.1f}",
    )


def _lines(result: Report) -> list[Text]:
    good = {"fences increasing": "yes", "overlaps found": "0", "lost updates": "0"}
    return [
        Text.assemble(
            f"{name:<20} ",
            (f"{value:<8}", "bold" if value == good.get(name, value) else "bold red"),
            (f" {note}", "dim"),
        )
        for name, value, note in _rows(result)
    ]


def _rows(result: Report) -> list[tuple[str, str, str]]:
    fences = "yes" if result.fences_increasing else "NO"
    apart = "" if result.overlaps else "no two held the lock at once"
    sums = f"{result.accepted} increments accepted, the counter stands at {result.counter}"
    step = f"from one holder to the next, p50; p99 {result.handover_p99_ms:.2f} ms"
    slow = f"up to {result.outage_max_ms:.0f} ms; p99 of the others {result.rest_p99_ms:.1f} ms"
    return [
        ("fences increasing", fences, f"over {result.total.turns} grants"),
        ("overlaps found", str(result.overlaps), apart),
        ("late writes refused", str(result.late_writes_refused), _late(result)),
        ("lost updates", str(result.lost_updates), sums),
        ("hand-over", f"{result.handover_p50_ms:.2f} ms", step),
        ("waits at the outages", str(result.outage_waits), slow),
    ]


def _late(result: Report) -> str:
    late = result.late
    if late is None or late.accepted:
        return ""
    return f"fence {late.fence} < {late.found_fence}"
