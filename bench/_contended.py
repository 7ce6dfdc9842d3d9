"""Section 3: eight processes want one lock and work a millisecond under it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from _peers import CONTENDERS, Holdfast, Token
from _report import Goal, Section, number, ratio
from _workers import Failed, Workers

from holdfast.server import Server

PROCESSES = 8
WORK_S = 0.001
INSIDE, OVERLAPS = 0, 1  # places in the shared array


def prepare(shared: Any, title: str, port: int) -> bool:
    """In a worker: import the library and connect, so that this costs no turn."""
    peer = CONTENDERS[title](_at(port))
    peer.take(peer.make(f"bench:warm:{time.monotonic_ns()}")).release()
    _state.peer, _state.title = peer, title
    return True


def contend(shared: Any, me: int, name: str, starts: float, seconds: float) -> Any:
    """In a worker: take turns until the time is over. Returns the number of turns and all waits.

    A wait that began in time counts even if it ended later; its turn does not.
    """
    peer = _state.peer
    lock = peer.make(name)
    waits = []
    turns = 0
    ends = starts + seconds
    time.sleep(max(0.0, starts - time.monotonic()))
    while (began := time.monotonic()) < ends:
        held = peer.take(lock)
        now = time.monotonic()
        waits.append(now - began)
        shared[OVERLAPS] += shared[INSIDE] != 0
        shared[INSIDE] = me
        time.sleep(WORK_S)
        shared[OVERLAPS] += shared[INSIDE] != me
        shared[INSIDE] = 0
        held.release()
        turns += now < ends
    peer.close()
    return turns, waits


_state = SimpleNamespace(peer=None, title="")


def _at(port: int) -> Any:
    """What a peer must know of a server that another process started."""
    return SimpleNamespace(port=port, url=f"redis://127.0.0.1:{port}/0")


@dataclass
class Tally:
    """What was seen of one contender over the rounds."""

    turns: list[int] = field(default_factory=lambda: [0] * PROCESSES)
    waits: list[float] = field(default_factory=list)
    overlaps: int = 0
    seconds: float = 0.0
    failed: str = ""

    def ms(self, share: float) -> float:
        """The wait that so large a share of the waits did not exceed, in ms."""
        ordered = sorted(self.waits)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3

    @property
    def evenness(self) -> float:
        """The fewest turns of a process over the most."""
        return min(self.turns) / max(self.turns) if max(self.turns) else 0.0


def _round(crew: Workers, server: Server, title: str, tally: Tally, seconds: float) -> None:
    server.command("FLUSHALL")
    crew.shared[INSIDE] = crew.shared[OVERLAPS] = 0
    crew.all("_contended:prepare", [(title, server.port)] * PROCESSES, 30)
    starts = time.monotonic() + 0.1
    orders = [(me + 1, "bench:contended", starts, seconds) for me in range(PROCESSES)]
    answers = crew.all("_contended:contend", orders, seconds + 30)
    tally.overlaps += crew.shared[OVERLAPS]
    tally.seconds += seconds
    for place, (turns, waits) in enumerate(answers):
        tally.turns[place] += turns
        tally.waits += waits


def _nap_ms() -> float:
    """How long the millisecond of work really is."""
    naps = []
    for _ in range(300):
        began = time.perf_counter()
        time.sleep(WORK_S)
        naps.append(time.perf_counter() - began)
    return statistics.median(naps) * 1e3


def _goals(tallies: dict[str, Tally], ideal: float) -> list[Goal]:
    ours = tallies.get(Holdfast.title)
    peers = [it for title, it in tallies.items() if title not in (Holdfast.title, Token.title)]
    best_peer = min((it.ms(1) for it in peers), default=None)
    return [
        Goal("turns, fewest / most of a process", ours and ours.evenness, 0.95, at_least=True),
        Goal("p99 wait / ideal", ratio(ours and ours.ms(0.99), ideal), 1.5, at_least=False),
        Goal(
            "best worst wait of a peer / ours",
            ratio(best_peer, ours and ours.ms(1)),
            10,
            at_least=True,
        ),
    ]


def contended(quick: bool) -> Section:
    """Section 3."""
    section = Section("contended", f"3. Contended: {PROCESSES} processes, 1 ms under the lock")
    section.columns = ["", "turns/s", "min/max", "p50 ms", "p99 ms", "worst ms", "overlaps"]
    rounds, seconds = (1, 1.0) if quick else (2, 2.5)
    tallies = {title: Tally() for title in CONTENDERS}
    nap = _nap_ms()
    crew = Workers(PROCESSES)
    try:
        with Server() as server:
            for place in range(rounds):
                for title in list(tallies)[:: -1 if place % 2 else 1]:
                    try:
                        if not tallies[title].failed:
                            _round(crew, server, title, tallies[title], seconds)
                    except Failed as error:
                        tallies[title].failed = str(error)
    finally:
        crew.stop()
    section.notes = [f"{t} is left out: {it.failed}" for t, it in tallies.items() if it.failed]
    tallies = {title: it for title, it in tallies.items() if not it.failed}
    for title, it in tallies.items():
        waits = [it.ms(share) for share in (0.5, 0.99, 1)]
        per_second = sum(it.turns) / it.seconds
        section.rows.append([title, per_second, it.evenness, *waits, it.overlaps])
        section.raw[title] = {"turns": it.turns, "waits": len(it.waits), "seconds": it.seconds}
    ideal = PROCESSES * nap
    section.raw["nap_ms"] = nap
    section.goals = _goals(tallies, ideal)
    ours, token = tallies.get(Holdfast.title), tallies.get(Token.title)
    section.notes += [
        f"Ideal wait: {PROCESSES} times the measured {nap:.2f} ms of work = {ideal:.2f} ms, with "
        "hand-overs that cost nothing.",
        f"Of that the raw token, which hands over at the least cost, reaches "
        f"{number(ratio(token and token.ms(0.99), ideal))}; holdfast's p99 over the token's: "
        f"{number(ratio(ours and ours.ms(0.99), token and token.ms(0.99)))}.",
        f"{rounds} round(s) of {seconds:g} s each, every library in every round. `overlaps` counts "
        "holders that met another inside.",
        *(f"{kind.title}: {kind.remark}" for kind in CONTENDERS.values() if kind.remark),
    ]
    return section
