"""`holdfast bootstrap`: declares several new primaries to be clean, so that they grant at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

import holdfast
from holdfast.cli._ending import fail
from holdfast.client import QUORUM_MAX_LEASE
from holdfast.errors import HoldfastError, UsageError

_EXPLANATION = """\
This declares {count} servers to be a new deployment, which has no locks to forget.

A server that is new, or was restarted or flushed, grants no locks for {quarantine:g} s, because it
may have forgotten some that are still held. Once declared, the servers grant at once.

Safe      while nobody holds a lock on these servers, and nobody asks them for one: before the
          first client starts, or when all are stopped and their leases are over.
Not safe  at any other time: two clients could hold the same lock at once.

The servers also note down max_lease + clock_step = {quarantine:g} s. They grant nothing to clients
that connect with another sum, so all clients of the deployment connect with max_lease={max_lease:g}
and clock_step={clock_step:g}, as given here.
"""


def bootstrap(
    urls: Annotated[
        list[str], typer.Argument(metavar="URL...", help="Every primary of the deployment.")
    ],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without this it only says what it would do.")
    ] = False,
    max_lease: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="As in connect(): the same for all clients."),
    ] = QUORUM_MAX_LEASE,
    clock_step: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="As in connect(): the same for all clients."),
    ] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON instead of the table.")
    ] = False,
) -> None:
    """Declare several new primaries to be clean: they have no locks to forget.

    Without it new servers grant nothing for max_lease + clock_step seconds. Safe only while nobody
    holds a lock there or asks for one. Exits with 0 if every server was declared, 1 if not.
    """
    if len(urls) < 2:
        fail("one primary grants at once and needs no bootstrap: give the URLs of several", 2)
    try:
        with holdfast.connect(urls, max_lease=max_lease, clock_step=clock_step) as hf:
            if not yes:
                _explain(len(urls), max_lease, clock_step, ask=not as_json)
            found = hf.bootstrap()
    except UsageError as error:
        fail(str(error), 2)
    _show(found, as_json)
    raise typer.Exit(1 if any(found.values()) else 0)


def _explain(count: int, max_lease: float, clock_step: float, *, ask: bool) -> None:
    """Say what would happen. Returns only if somebody at a terminal agrees to it."""
    typer.echo(
        _EXPLANATION.format(
            count=count,
            quarantine=max_lease + clock_step,
            max_lease=max_lease,
            clock_step=clock_step,
        ),
        err=True,
    )
    if not (ask and sys.stdin.isatty() and sys.stdout.isatty()):
        fail("nothing was changed; add --yes to declare them", 2)
    if not typer.confirm("Is it safe now, and shall they be declared?"):
        fail("nothing was changed", 2)


def _show(found: Mapping[str, HoldfastError | None], as_json: bool) -> None:
    if as_json:
        nodes = [
            {"node": node, "declared": error is None, "error": error and str(error)}
            for node, error in found.items()
        ]
        print(json.dumps({"ok": not any(found.values()), "nodes": nodes}), flush=True)
        return
    if sys.stdout.isatty():
        _table(found)
    else:
        for node, error in found.items():
            print(f"{node}  {_said(error)}", flush=True)
    if any(found.values()):
        print(
            "A server that is not declared grants nothing for a while after it is first asked; no "
            "lock is in danger. To declare it later, make sure anew that it is safe: see --help.",
            file=sys.stderr,
        )


def _said(error: HoldfastError | None) -> str:
    return "declared" if error is None else f"NOT declared: {error}"


def _table(found: Mapping[str, HoldfastError | None]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("server", "")
    for node, error in found.items():
        table.add_row(Text(node), Text(_said(error), "red" if error else "green"))
    Console().print(table)
