"""Sections 1 and 2: an uncontended acquire and release, blocking and asyncio."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import _apeers
import _peers
import _rounds
from _floor import Wire, raw_requests, recorded
from _report import Goal, Section, number, ratio

from holdfast.server import Server

RAW = "raw socket: SET, EVALSHA"
OURS = "raw socket: our scripts"
FRESH = ", a new lock each"


def _ratio(figures: dict[str, _rounds.Figures], above: str, below: str) -> float | None:
    """The median over the rounds of the ratio within one round."""
    if above not in figures or below not in figures:
        return None
    both = zip(figures[above].wall, figures[below].wall, strict=True)
    return statistics.median(one / other for one, other in both)


def _raw(figures: dict[str, _rounds.Figures]) -> dict[str, Any]:
    return {
        name: {"pairs_per_round": it.pairs, "us": [round(s * 1e6, 2) for s in it.wall]}
        for name, it in figures.items()
    }


def _blocking_runs(server: Server, peers: dict[str, Any]) -> dict[str, Any]:
    raw = Wire(server, raw_requests(server, "bench:raw", "0" * 32))
    ours = Wire(server, recorded(server))
    raw.check()
    ours.check()
    runs = {RAW: raw.pairs, OURS: ours.pairs}
    for number_, (title, peer) in enumerate(peers.items()):
        runs[title] = peer.reused(f"bench:pair:{number_}")
        if isinstance(peer, _peers.Holdfast | _peers.RedisPy):
            runs[title + FRESH] = peer.fresh(f"bench:fresh:{number_}")
    return runs


def _blocking_goals(figures: dict[str, _rounds.Figures]) -> list[Goal]:
    ours, theirs = _peers.Holdfast.title, _peers.RedisPy.title
    return [
        Goal("redis-py Lock / holdfast", _ratio(figures, theirs, ours), 1.6, at_least=True),
        Goal("holdfast / raw socket floor", _ratio(figures, ours, RAW), 1.35, at_least=False),
    ]


def blocking(quick: bool) -> Section:
    """Section 1: one thread, one lock, nobody else wants it."""
    section = Section("blocking", "1. Uncontended pair (acquire + release), blocking")
    section.columns = ["", "us/pair", "best", "cpu us", "x floor", "x holdfast"]
    rounds, most = (5, 150) if quick else (15, 300)
    with Server() as server:
        peers = _peers.opened(_peers.PEERS, server, section.notes)
        figures = _rounds.blocking(_blocking_runs(server, peers), rounds, most, 0.3)
        for peer in peers.values():
            peer.close()
    for name, it in figures.items():
        over = _ratio(figures, name, RAW), _ratio(figures, name, _peers.Holdfast.title)
        section.rows.append([name, it.us, it.best_us, it.cpu_us, *over])
    section.goals = _blocking_goals(figures)
    fresh = _ratio(figures, _peers.RedisPy.title + FRESH, _peers.Holdfast.title + FRESH)
    over = _ratio(figures, _peers.Holdfast.title, OURS)
    section.notes += [
        f"{rounds} interleaved rounds of at most {most} pairs; medians, also of the ratios, which "
        "are taken within a round. `best` is the quickest round; `cpu` is this process only.",
        f"With a new lock object and a `with` block for each pair: redis-py / holdfast = "
        f"{number(fresh)}.",
        f"holdfast over its own bytes on a raw socket (what its Python costs): {number(over)}.",
        *(f"{peer.title}: {peer.remark}" for peer in peers.values() if peer.remark),
    ]
    section.raw = _raw(figures)
    return section


async def _tasks(
    server: Server, tasks: int, quick: bool, notes: list[str]
) -> dict[str, _rounds.Figures]:
    """One table: so many tasks at once."""
    found = await _apeers.opened(server, tasks, notes)
    runs = {title: peer.run for title, peer in found.items()}
    if tasks == 1:
        rounds, most, budget = (3, 300, 0.2) if quick else (9, 1000, 0.3)
    else:
        rounds, most, budget = (3, 5 * tasks, 0.5) if quick else (9, 10 * tasks, 0.6)
    try:
        return await _rounds.asynchronous(runs, rounds, tasks, most, budget)
    finally:
        for peer in found.values():
            await peer.close()


def _async_goals(many: dict[str, _rounds.Figures]) -> list[Goal]:
    ours = _apeers.AsyncHoldfast.title

    def times(*peers: type[_apeers.AsyncPeer]) -> float | None:
        """Against the quickest of them."""
        found = [r for peer in peers if (r := _ratio(many, peer.title, ours)) is not None]
        return min(found, default=None)

    return [
        Goal(
            "holdfast / redis.asyncio Lock, 1,000 tasks",
            times(_apeers.AsyncRedisPy, _apeers.AsyncRedisPyQueued),
            15,
            at_least=True,
        ),
        Goal(
            "holdfast / valkey-glide raw, 1,000 tasks",
            times(_apeers.Glide, _apeers.GlideCustom),
            3.5,
            at_least=True,
        ),
    ]


def asynchronous(quick: bool) -> Section:
    """Section 2: one task, and a thousand, each with a lock of its own."""
    section = Section("asyncio", "2. Uncontended pairs (acquire + release), asyncio")
    section.columns = ["", "1 task: pairs/s", "x holdfast", "1,000 tasks: pairs/s", "x holdfast"]
    with Server() as server:
        one = asyncio.run(_tasks(server, 1, quick, []))
        many = asyncio.run(_tasks(server, 1000, quick, section.notes))
    ours = _apeers.AsyncHoldfast.title
    for kind in _apeers.ASYNC_PEERS:
        cells: list[Any] = [kind.title]
        for figures in (one, many):
            it = figures.get(kind.title)
            cells += [it and it.per_second, _ratio(figures, ours, kind.title)]
        section.rows.append(cells)
    section.goals = _async_goals(many)
    python = ratio(1.0, _ratio(many, _apeers.OurScripts.title, ours))
    section.notes += [
        "Throughput over holdfast's; the goals compare with the quicker of a library's two rows.",
        f"1,000 tasks: holdfast takes {number(python)} times as long as its own bytes on a bare "
        "pipe (what its Python costs).",
        *(f"{kind.title}: {kind.remark}" for kind in _apeers.ASYNC_PEERS if kind.remark),
    ]
    section.raw = {"1 task": _raw(one), "1,000 tasks": _raw(many)}
    return section
