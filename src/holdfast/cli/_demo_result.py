"""The last pictures of `holdfast demo`: tables of votes, of turns and waits, and the verdict."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli._demo_report import Report, Summary, Waits
from holdfast.cli._demo_votes import GRANTED, NO_VOTE, QUARANTINED, UNREACHABLE, Moment

_STYLES: Final = {GRANTED: "green", QUARANTINED: "cyan", UNREACHABLE: "red", NO_VOTE: "yellow"}


def show(result: Report) -> None:
    """Print what a part found, for people: in colour on a terminal, else as plain ASCII."""
    terminal, console = _console()
    console.print()
    if result.moments:
        console.print(_votes(result.moments, plain=not terminal))
        console.print()
    console.print(_waits(result, plain=not terminal))
    console.print()
    for line in _lines(result):
        console.print(line, soft_wrap=not terminal)
    for violation in result.violations:
        console.print(Text(f"VIOLATED  {violation}", "bold red"), soft_wrap=not terminal)


def conclude(summary: Summary) -> None:
    """Print the verdict on all parts."""
    _, console = _console()
    console.print()
    if summary.ok:
        console.print(Text(f"Every invariant held, in {summary.seconds:.1f} s.", "bold green"))
    else:
        console.print(Text("Not every invariant held: see above.", "bold red"))


def _console() -> tuple[bool, Console]:
    terminal = sys.stdout.isatty()
    plain = Console(force_terminal=False, color_system=None, width=100)
    return terminal, Console() if terminal else plain


def _table(*, plain: bool, footer: bool) -> Table:
    table = Table(box=None if plain else box.SIMPLE_HEAD, show_footer=footer)
    table.show_edge = table.pad_edge = False
    return table


def _votes(moments: Sequence[Moment], *, plain: bool) -> Table:
    """A line for each node: what it said of the lock as time went on."""
    table = _table(plain=plain, footer=True)
    table.add_column("", footer="held by")
    for moment in moments:
        table.add_column(moment.title, footer=f"worker {moment.worker}")
    for node, row in enumerate(zip(*(moment.votes for moment in moments), strict=True), 1):
        table.add_row(f"node {node}", *(Text(str(vote), _STYLES[vote.said]) for vote in row))
    return table


def _waits(result: Report, *, plain: bool) -> Table:
    table = _table(plain=plain, footer=True)
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
    slow = f"up to {result.long_max_ms:.0f} ms; p99 of the others {result.rest_p99_ms:.1f} ms"
    rows = [
        ("fences increasing", fences, f"over {result.total.turns} grants"),
        ("overlaps found", str(result.overlaps), apart),
        ("lost updates", str(result.lost_updates), sums),
        ("hand-over", f"{result.handover_p50_ms:.2f} ms", step),
        ("waits in the acts", str(result.long_waits), slow),
    ]
    if not result.moments:
        rows.insert(2, ("late writes refused", str(result.late_writes_refused), _late(result)))
    return rows


def _late(result: Report) -> str:
    late = result.late
    if late is None or late.accepted:
        return ""
    return f"fence {late.fence} < {late.found_fence}"
