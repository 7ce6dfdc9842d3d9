"""`holdfast demo`: processes contend for a lock; workers come to grief, and then servers do."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

import holdfast
from holdfast.cli._demo_account import Account
from holdfast.cli._demo_acts import contention, freeze, kill
from holdfast.cli._demo_crew import Crew
from holdfast.cli._demo_messages import Terms
from holdfast.cli._demo_quorum import NODES, amnesia, outage
from holdfast.cli._demo_report import Facts, Report, Summary, report
from holdfast.cli._demo_result import conclude, show
from holdfast.cli._demo_screen import Board, chosen
from holdfast.cli._demo_stage import Stage, StuckError
from holdfast.cli._ending import Asked, fail, heed_signals
from holdfast.errors import HoldfastError
from holdfast.server import Server

LEASE: Final = 1.2
QUORUM_LEASE: Final = 2.0
QUORUM_MAX_LEASE: Final = 3.0  # and for so long a server that may have forgotten locks grants none
# Over several primaries nobody keeps the lock for the next in line: who asks at once gets it again.
QUORUM_REST: Final = 0.005
NAME: Final = "demo:counter"


class _Settings(msgspec.Struct, frozen=True):
    seconds: float
    workers: int
    as_json: bool
    fenced: bool
    guarded: bool
    began: float


def demo(
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="How long they contend before it gets worse.")
    ] = 4.0,
    workers: Annotated[int, typer.Option(min=2, max=16, help="How many processes.")] = 6,
    part: Annotated[
        int | None,
        typer.Option(min=1, max=2, help="Only this part: 1 has one server, 2 has five."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one line of JSON, and nothing else.")
    ] = False,
    fenced: Annotated[bool, typer.Option("--fenced/--unfenced", hidden=True)] = True,
    guarded: Annotated[bool, typer.Option("--guarded/--unguarded", hidden=True)] = True,
) -> None:
    """Watch processes contend for one lock on real servers.

    On one server a worker is killed and one freezes. On five, of which a majority decides, two
    servers are killed and come back without their memory.

    Everything shown is measured. Exits with 0 if every invariant held, 1 if not.
    """
    heed_signals()
    settings = _Settings(seconds, workers, as_json, fenced, guarded, time.monotonic())
    parts = (_one_server, _five_primaries)
    try:
        results = [play(settings) for play in (parts if part is None else parts[part - 1 : part])]
    except Asked:
        fail("interrupted; its workers and its servers are gone", 130)
    except HoldfastError as error:
        fail(str(error), 1)
    taken = round(time.monotonic() - settings.began, 3)
    summary = Summary(all(result.ok for result in results), taken, results)
    if as_json:
        print(msgspec.json.encode(summary).decode(), flush=True)
    else:
        conclude(summary)
    raise typer.Exit(0 if summary.ok else 1)


def _one_server(settings: _Settings) -> Report:
    """Two workers suffice: the one that freezes wakes before another is killed."""
    workers = settings.workers

    def acts(stage: Stage) -> None:
        contention(stage, settings.seconds)
        freeze(stage, victim=2)
        kill(stage, victim=workers if workers > 2 else 1)

    with ExitStack() as stack:
        server = stack.enter_context(Server())
        terms = Terms(server.url, NAME, LEASE, settings.fenced)
        return _perform(settings, [server], terms, acts)


def _five_primaries(settings: _Settings) -> Report:
    """A majority of five decides, so that two may fail."""

    def acts(stage: Stage) -> None:
        contention(stage, settings.seconds / 2)
        outage(stage)
        amnesia(stage)

    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(NODES)]
        urls = [server.url for server in servers]
        if settings.guarded:
            _declare(urls)
        terms = Terms(
            urls,
            NAME,
            QUORUM_LEASE,
            settings.fenced,
            max_lease=QUORUM_MAX_LEASE,
            guard=settings.guarded,
            rest=QUORUM_REST,
        )
        return _perform(settings, servers, terms, acts)


def _declare(urls: list[str]) -> None:
    """What `holdfast bootstrap` does: new servers grant at once only if told that they are new."""
    with holdfast.connect(urls, max_lease=QUORUM_MAX_LEASE) as hf:
        for error in hf.bootstrap().values():
            if error is not None:
                raise error


def _perform(
    settings: _Settings,
    servers: list[Server],
    terms: Terms,
    acts: Callable[[Stage], None],
) -> Report:
    """One part: a crew of workers with these terms, an account, and what becomes of them."""
    began = time.monotonic()
    first, numbers = servers[0], range(1, settings.workers + 1)
    with ExitStack() as stack:
        # In the server's folder, which vanishes with this process even if that is killed.
        folder = first.socket.parent
        account = Account(folder / "account.db")
        stack.callback(account.close)
        account.create()
        terms = msgspec.structs.replace(terms, account=str(folder / "account.db"))
        each = [msgspec.structs.replace(terms, worker=number) for number in numbers]
        crew = Crew(each, folder / "workers.log")
        stack.callback(crew.close)
        pids = {number: crew.pid(number) for number in numbers}
        screen = stack.enter_context(chosen(settings.as_json, settings.began))
        screen.act(*_title(servers, terms.lease))
        stage = Stage(crew, Board(pids, terms.lease, len(servers)), screen, servers, terms.name)
        _play(stage, acts, folder / "workers.log")
        facts = Facts(
            server=first.binary.label,
            server_pids=[server.pid for server in servers],
            lease=terms.lease,
            seconds=time.monotonic() - began,
            counter=account.read()[0],
            pids=pids,
        )
    result = report(stage.history, stage.findings, facts)
    if not settings.as_json:
        show(result)
    return result


def _title(servers: list[Server], lease: float) -> tuple[str, str]:
    label, lock = servers[0].binary.label, f"a lock with a lease of {lease:g} s"
    if len(servers) == 1:
        return f"One server, {label}", lock
    return f"{len(servers)} primaries, {label}", f"{lock}, of which a majority decides"


def _play(stage: Stage, acts: Callable[[Stage], None], errors: Path) -> None:
    try:
        stage.begin()
        acts(stage)
        stage.end()
    except StuckError as error:
        said = errors.read_text(errors="replace").strip()[-1000:] if errors.exists() else ""
        stage.findings.trouble.append(f"{error}; the workers said: {said}" if said else str(error))
