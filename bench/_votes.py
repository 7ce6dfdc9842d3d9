"""Sections 1 and 2: an uncontended acquire and release over 1, 3 and 5 servers, and 1,000 tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import _aquorum
import _fan
import _quorum
import _rounds
from _apeers import opened as async_opened
from _cores import one_core
from _peers import opened
from _report import Goal, Section, number
from _rounds import Figures, over, raw_figures

from holdfast.server import Server

RAW = _fan.Fan.title
OURS = _fan.OurFan.title
SIZES = (1, 3, 5)
TASKS = 1000
BLOCKING, ASYNCIO = "blocking", "asyncio"

Tables = dict[tuple[str, int], dict[str, Figures]]


def _failures(peers: Sequence[Any], figures: dict[str, Figures], where: str) -> list[str]:
    """What did not succeed although nobody was in the way."""
    found = []
    for peer in peers:
        failed = getattr(peer, "failed", None)
        if failed:
            what = ", ".join(f"{count} x {error}" for error, count in failed.items())
            it = figures[peer.title]
            found.append(
                f"{peer.title}, {where}: of about {it.pairs * len(it.wall):,} pairs these failed: "
                f"{what}"
            )
    return found


def blocking(
    nodes: Sequence[Server], quick: bool, pinned: bool, notes: list[str]
) -> dict[str, Figures]:
    rounds = (7 if quick else 40) // (1 if pinned else 2)
    with one_core(pinned, *nodes):
        peers = opened([_fan.Fan, _fan.OurFan, *_quorum.PEERS], nodes, notes)
        runs = {
            title: peer.reused(f"bench:pair:{place}")
            for place, (title, peer) in enumerate(peers.items())
        }
        figures = _rounds.blocking(runs, rounds, 40, 0.02 if quick else 0.03)
        for it in peers.values():
            it.close()
    notes += _failures(list(peers.values()), figures, f"{len(nodes)} nodes, blocking")
    return figures


async def _tasks(
    nodes: Sequence[Server], tasks: int, quick: bool, notes: list[str]
) -> dict[str, Figures]:
    peers = await async_opened(nodes, tasks, notes, _aquorum.ALL)
    runs = {title: peer.run for title, peer in peers.items()}
    if tasks == 1:
        rounds, most, budget = (4, 40, 0.02) if quick else (20, 60, 0.04)
    else:
        rounds, most, budget = (2, 2 * tasks, 0.3) if quick else (5, 5 * tasks, 0.6)
    try:
        figures = await _rounds.asynchronous(runs, rounds, tasks, most, budget)
    finally:
        for peer in peers.values():
            await peer.close()
    where = f"{len(nodes)} nodes, {tasks:,} task{'s' if tasks > 1 else ''}"
    notes += _failures(list(peers.values()), figures, where)
    return figures


def one_task(
    nodes: Sequence[Server], quick: bool, pinned: bool, notes: list[str]
) -> dict[str, Figures]:
    with one_core(pinned, *nodes):
        return asyncio.run(_tasks(nodes, 1, quick, notes))


def _once(notes: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(notes))


def goals(figures: dict[str, Figures], where: str, *, blocking: bool) -> list[Goal]:
    """The goals for five nodes."""
    ours = _quorum.Holdfast.title
    textbook = _quorum.Textbook if blocking else _aquorum.AsyncTextbook
    pottery = _quorum.Pottery if blocking else _aquorum.AsyncPottery
    return [
        Goal(f"{what} / holdfast, {where}", over(figures, title, ours), bound, at_least=True)
        for what, title, bound in (
            ("sequential redis-py", textbook.title, 4),
            ("pottery", pottery.title, 10),
        )
    ] + [Goal(f"holdfast / raw fan-out, {where}", over(figures, ours, RAW), 1.3, at_least=False)]


def _rows(pinned: Tables, free: Tables, colour: str) -> list[list[Any]]:
    ours = _quorum.Holdfast.title
    kinds = _quorum.PEERS if colour == BLOCKING else _aquorum.ASYNC_PEERS
    rows = []
    for title in (RAW, OURS, *(kind.title for kind in kinds)):
        cells: list[Any] = [f"{colour}: {title}"]
        for tables in (free, pinned):
            for size in SIZES:
                figures = tables[colour, size]
                cells.append(figures[title].us if title in figures else None)
            cells.append(over(tables[colour, SIZES[-1]], title, ours))
        rows.append(cells)
    return rows


def _decomposition(tables: Tables, where: str) -> list[str]:
    ours = _quorum.Holdfast.title
    return [
        f"{where}, {colour}, 5 nodes: holdfast over its own bytes on raw sockets (its Python): "
        f"{number(over(tables[colour, 5], ours, OURS))}; those over the raw fan-out (its Lua): "
        f"{number(over(tables[colour, 5], OURS, RAW))}."
        for colour in (BLOCKING, ASYNCIO)
    ]


def latency(quick: bool) -> Section:
    """Section 1: nobody else wants the lock."""
    section = Section("latency", "1. Uncontended pair (acquire + release) over 1, 3, 5 primaries")
    section.columns = ["us", *(f"free: {size}" for size in SIZES), "x holdfast (5)"]
    section.columns += [*(f"one core: {size}" for size in SIZES), "x holdfast (5)"]
    pinned: Tables = {}
    free: Tables = {}
    notes: list[str] = []
    for size in SIZES:
        for tables, one in ((free, False), (pinned, True)):
            with _fan.primaries(size) as nodes:
                tables[BLOCKING, size] = blocking(nodes, quick, one, notes)
                tables[ASYNCIO, size] = one_task(nodes, quick, one, notes)
    for colour in (BLOCKING, ASYNCIO):
        section.rows += _rows(pinned, free, colour)
        section.goals += goals(free[colour, 5], f"5 nodes, {colour}", blocking=colour == BLOCKING)
    for colour in (BLOCKING, ASYNCIO):
        section.goals += goals(
            pinned[colour, 5], f"5 nodes, {colour}, one core", blocking=colour == BLOCKING
        )
    section.notes = [
        "Medians of interleaved rounds, in microseconds; ratios are medians of those within a "
        "round. Free: the system places client and servers. One core: all on one, where nothing "
        "can run beside anything else, so that only work counts.",
        "The raw fan-out reads the replies of all nodes, holdfast those of a majority.",
        *_decomposition(free, "Free"),
        *_decomposition(pinned, "One core"),
        *(f"{it.title}: {it.remark}" for it in (*_quorum.PEERS, *_aquorum.ALL) if it.remark),
        *_once(notes),
    ]
    section.raw = {
        where: {f"{colour}, {size}": raw_figures(it) for (colour, size), it in tables.items()}
        for where, tables in (("free", free), ("one core", pinned))
    }
    return section


def throughput(quick: bool) -> Section:
    """Section 2: a thousand tasks, each with a lock of its own."""
    section = Section("throughput", f"2. {TASKS:,} asyncio tasks, each with a lock of its own")
    sizes = (5,) if quick else (3, 5)
    section.columns = [""]
    tables: dict[int, dict[str, Figures]] = {}
    notes: list[str] = []
    for size in sizes:
        section.columns += [f"{size} nodes: pairs/s", "cpu us / pair", "x holdfast"]
        with _fan.primaries(size) as nodes:
            tables[size] = asyncio.run(_tasks(nodes, TASKS, quick, notes))
    ours = _quorum.Holdfast.title
    for kind in _aquorum.ALL:
        cells: list[Any] = [kind.title]
        for figures in tables.values():
            it = figures.get(kind.title)
            cells += [it and it.per_second, it and it.cpu_us, over(figures, ours, kind.title)]
        section.rows.append(cells)
    section.goals = goals(tables[5], f"5 nodes, {TASKS:,} tasks", blocking=False)
    section.notes = [
        "`x holdfast`: throughput over holdfast's. `cpu`: of the client's process.",
        f"5 nodes: holdfast takes {number(over(tables[5], ours, OURS))} times as long as its own "
        f"bytes on bare pipes (its Python); those {number(over(tables[5], OURS, RAW))} times as "
        "long as the raw fan-out (its Lua).",
        *_once(notes),
    ]
    section.raw = {f"{size} nodes": raw_figures(it) for size, it in tables.items()}
    return section
