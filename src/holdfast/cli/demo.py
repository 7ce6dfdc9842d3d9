"""`holdfast demo`: several processes, one lock, and two of them come to grief."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from holdfast.cli._demo_account import Account
from holdfast.cli._demo_acts import contention, freeze, kill
from holdfast.cli._demo_crew import Crew
from holdfast.cli._demo_messages import Terms
from holdfast.cli._demo_report import Facts, Report, report
from holdfast.cli._demo_result import show
from holdfast.cli._demo_screen import Board, Screen, chosen
from holdfast.cli._demo_stage import Stage, StuckError
from holdfast.errors import HoldfastError
from holdfast.server import Server

LEASE = 1.2
NAME = "demo:counter"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Asked(BaseException):
    """A signal asked us to end. Not an Exception, so that nothing on the way catches it."""


def demo(
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="How long they contend before it gets worse.")
    ] = 5.0,
    workers: Annotated[int, typer.Option(min=2, max=16, help="How many processes.")] = 6,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one line of JSON, and nothing else.")
    ] = False,
    fenced: Annotated[bool, typer.Option("--fenced/--unfenced", hidden=True)] = True,
) -> None:
    """Watch processes contend for one lock on a real server; one is killed, one freezes.

    Everything shown is measured. Exits with 0 if every invariant held, 1 if not.
    """
    for number in _SIGNALS:
        signal.signal(number, _on_signal)
    try:
        result = _perform(seconds, workers, chosen(as_json, time.monotonic()), fenced)
    except _Asked:
        _fail("interrupted; its workers and its server are gone", 130)
    except HoldfastError as error:
        _fail(str(error), 1)
    if as_json:
        print(msgspec.json.encode(result).decode(), flush=True)
    else:
        show(result)
    raise typer.Exit(0 if result.ok else 1)


def _on_signal(*_: object) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second one would cut the cleaning up short
    raise _Asked


def _fail(message: str, status: int) -> NoReturn:
    typer.echo(f"holdfast: {message}", err=True)
    raise typer.Exit(status)


def _perform(seconds: float, workers: int, screen: Screen, fenced: bool) -> Report:
    began = time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        # In the server's folder, which vanishes with this process even if that is killed.
        folder = server.socket.parent
        account = Account(folder / "account.db")
        stack.callback(account.close)
        account.create()
        crew = Crew(_terms(server.url, folder, workers, fenced), folder / "workers.log")
        stack.callback(crew.close)
        pids = {worker: crew.pid(worker) for worker in range(1, workers + 1)}
        stage = Stage(crew, Board(pids, LEASE), screen, LEASE)
        with screen:
            screen.act(f"holdfast on {server.binary.label}", f"a lock with a lease of {LEASE:g} s")
            _play(stage, seconds, folder / "workers.log")
        facts = Facts(
            server=server.binary.label,
            server_pid=server.pid,
            lease=LEASE,
            seconds=time.monotonic() - began,
            counter=account.read()[0],
            pids=pids,
        )
    return report(stage.history, stage.findings, facts)


def _terms(url: str, folder: Path, workers: int, fenced: bool) -> list[Terms]:
    account = str(folder / "account.db")
    return [Terms(worker, url, account, NAME, LEASE, fenced) for worker in range(1, workers + 1)]


def _play(stage: Stage, seconds: float, errors: Path) -> None:
    """All acts. Two workers suffice: the one that freezes wakes before another is killed."""
    workers = len(stage.board.players)
    try:
        stage.begin()
        contention(stage, seconds)
        freeze(stage, victim=2)
        kill(stage, victim=workers if workers > 2 else 1)
        stage.end()
    except StuckError as error:
        said = errors.read_text(errors="replace").strip()[-1000:] if errors.exists() else ""
        stage.findings.trouble.append(f"{error}; the workers said: {said}" if said else str(error))
