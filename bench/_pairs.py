"""Sections 1 and 2: an uncontended acquire and release, blocking and asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import _apeers
import _peers
import _rounds
from _cores import one_core
from _floor import Wire, raw_requests, recorded
from _report import Goal, Section, number, ratio
from _rounds import over, raw_figures

from holdfast.server import Server

RAW = "raw socket: SET, EVALSHA"
OURS = "raw socket: our scripts"
FRESH = ", a new lock each"


def _blocking_runs(server: Server, peers: dict[str, Any]) -> dict[str, Any]:
    raw = Wire(server, raw_requests(server, "bench:raw", "0" * 32))
    ours = Wire(server, recorded(server))
    raw.check()
    ours.check()
    runs = {RAW: raw.pairs, OURS: ours.pairs}
    for place, (title, peer) in enumerate(peers.items()):
        runs[title] = peer.reused(f"bench:pair:{place}")
        if type(peer) in (_peers.Holdfast, _peers.RedisPy):
            runs[title + FRESH] = peer.fresh(f"bench:fresh:{place}")
    return runs


def _blocking_figures(
    quick: bool, pinned: bool, notes: list[str]
) -> tuple[dict[str, _rounds.Figures], list[str]]:
    """Everybody's figures, and the remarks of those who took part."""
    rounds = (12 if quick else 60) // (1 if pinned else 2)
    with Server() as server, one_core(pinned, server):
        peers = _peers.opened(_peers.PEERS, server, notes)
        figures = _rounds.blocking(_blocking_runs(server, peers), rounds, 50, 0.03)
        for peer in peers.values():
            peer.close()
    return figures, [f"{it.title}: {it.remark}" for it in peers.values() if it.remark]


def _blocking_goals(figures: dict[str, _rounds.Figures]) -> list[Goal]:
    ours, theirs = _peers.Holdfast.title, _peers.RedisPy.title
    return [
        Goal("redis-py Lock / holdfast", over(figures, theirs, ours), 1.6, at_least=True),
        Goal("holdfast / raw socket floor", over(figures, ours, RAW), 1.35, at_least=False),
    ]


def _blocking_notes(one: dict[str, _rounds.Figures], free: dict[str, _rounds.Figures]) -> list[str]:
    ours, theirs = _peers.Holdfast.title, _peers.RedisPy.title
    return [
        "One core: client and server share a core, which takes the waking of idle cores out of the "
        "figures; the goals are of these. Free: the system places them.",
        "Interleaved rounds, medians, also of the ratios, which are taken within a round. `cpu` is "
        "the client's process.",
        f"With a new lock object and a `with` block for each pair: redis-py / holdfast = "
        f"{number(over(one, theirs + FRESH, ours + FRESH))}.",
        f"holdfast over its own bytes on a raw socket (what its Python costs): "
        f"{number(over(one, ours, OURS))}; those over the raw floor (its Lua): "
        f"{number(over(one, OURS, RAW))}.",
        f"Free placement: redis-py / holdfast = {number(over(free, theirs, ours))}, "
        f"holdfast / raw floor = {number(over(free, ours, RAW))}.",
    ]


def blocking(quick: bool) -> Section:
    """Section 1: one thread, one lock, nobody else wants it."""
    section = Section("blocking", "1. Uncontended pair (acquire + release), blocking")
    section.columns = ["", "one core: us", "best", "cpu us", "x floor", "x holdfast", "free: us"]
    one, remarks = _blocking_figures(quick, True, section.notes)
    free, _ = _blocking_figures(quick, False, [])
    for name, it in one.items():
        times = over(one, name, RAW), over(one, name, _peers.Holdfast.title)
        elsewhere = free[name].us if name in free else None
        section.rows.append([name, it.us, it.best_us, it.cpu_us, *times, elsewhere])
    section.goals = _blocking_goals(one)
    section.notes += _blocking_notes(one, free) + remarks
    section.raw = {"one core": raw_figures(one), "free": raw_figures(free)}
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
        found = [r for peer in peers if (r := over(many, peer.title, ours)) is not None]
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
        with one_core(True, server):
            one = asyncio.run(_tasks(server, 1, quick, []))
        many = asyncio.run(_tasks(server, 1000, quick, section.notes))
    ours = _apeers.AsyncHoldfast.title
    for kind in _apeers.ASYNC_PEERS:
        cells: list[Any] = [kind.title]
        for figures in (one, many):
            it = figures.get(kind.title)
            cells += [it and it.per_second, over(figures, ours, kind.title)]
        section.rows.append(cells)
    section.goals = _async_goals(many)
    python = ratio(1.0, over(many, _apeers.OurScripts.title, ours))
    section.notes += [
        "`x holdfast`: throughput over holdfast's. One task: client and server on one core, as in "
        "section 1; 1,000 tasks: the system places them. The goals compare with the quicker of a "
        "library's two rows.",
        f"1,000 tasks: holdfast takes {number(python)} times as long as its own bytes on a bare "
        "pipe (what its Python costs).",
        *(f"{kind.title}: {kind.remark}" for kind in _apeers.ASYNC_PEERS if kind.remark),
    ]
    section.raw = {"1 task": raw_figures(one), "1,000 tasks": raw_figures(many)}
    return section
