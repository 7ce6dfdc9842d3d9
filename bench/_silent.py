"""Section 3: some of five servers say nothing (SIGSTOP): connections stay, answers do not come."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import _aquorum
import _fan
import _quorum
from _quorum import NODE_S
from _report import Goal, Section, number, ratio

from holdfast.server import Server

NODES = 5
QUICK_S = 0.1  # whoever has the first grant sooner than this is asked for more
SLOW_S = 4.0  # a contender whose turn takes longer has no second one
HUNG_S = 2.0  # the patience with peers that have none of their own


@dataclass
class Turn:
    """What one contender showed in one turn: seconds."""

    before: list[float] = field(default_factory=list)
    pairs: list[float] = field(default_factory=list)
    first: float | None = None  # the first grant of a client that knew all nodes
    new: float | None = None  # that of a client which comes when they are silent already
    failed: str = ""

    @property
    def times(self) -> float | None:
        """The median pair with silent nodes over that with none."""
        return ratio(_median(self.pairs), _median(self.before))


def _median(seconds: Sequence[float]) -> float | None:
    return statistics.median(seconds) if seconds else None


@contextmanager
def silenced(nodes: Sequence[Server]) -> Iterator[None]:
    """These say nothing within the block. They go on whatever happens in it."""
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.command, "PING", timeout=10.0)
        for node in nodes:
            stack.callback(node.resume)
            node.pause()
        yield


def _pairs(peer: Any, lock: Any, seconds: float) -> tuple[float, list[float]]:
    """Pairs for so long, and how long the first grant took."""
    now = time.perf_counter
    took: list[float] = []
    first = 0.0
    ends = now() + seconds
    while True:
        began = now()
        held = peer.take(lock)
        first = first or now() - began
        held.release()
        over = now()
        took.append(over - began)
        if over >= ends:
            return first, took


async def _async_pairs(peer: Any, lock: Any, seconds: float) -> tuple[float, list[float]]:
    now = time.perf_counter
    took: list[float] = []
    first = 0.0
    ends = now() + seconds
    async with asyncio.timeout(seconds + HUNG_S):
        while True:
            began = now()
            held = await peer.grant(lock)
            first = first or now() - began
            await held.release()
            over = now()
            took.append(over - began)
            if over >= ends:
                return first, took


def _failure(error: Exception, began: float) -> str:
    return f"{type(error).__name__} after {number(time.perf_counter() - began)} s"


def _turn(
    kind: Any, nodes: Sequence[Server], silent: Sequence[Server], name: str, spans: Spans
) -> Turn:
    """A fresh client, pairs with all nodes, then pairs with some of them silent."""
    turn = Turn()
    peer = kind(nodes)
    lock = peer.make(name)
    _pairs(peer, lock, 0.02)  # connections, scripts
    _, turn.before = _pairs(peer, lock, spans.before)
    late = None
    with silenced(silent):
        began = time.perf_counter()
        try:
            turn.first, turn.pairs = _pairs(peer, lock, spans.silent)
            if silent and turn.first < QUICK_S:
                late = kind(nodes)
                turn.new, _ = _pairs(late, late.make(f"{name}:new"), 0)
        except Exception as error:
            turn.failed = _failure(error, began)
    for each in (peer, late):
        if each is not None:
            each.close()
    return turn


async def _async_turn(
    kind: Any, nodes: Sequence[Server], silent: Sequence[Server], name: str, spans: Spans
) -> Turn:
    turn = Turn()
    peer = kind(nodes, 1)
    peer.client = await peer.connect()
    lock = peer.make(name)
    await _async_pairs(peer, lock, 0.02)
    _, turn.before = await _async_pairs(peer, lock, spans.before)
    late = None
    with silenced(silent):
        began = time.perf_counter()
        try:
            turn.first, turn.pairs = await _async_pairs(peer, lock, spans.silent)
            if silent and turn.first < QUICK_S:
                late = kind(nodes, 1)
                late.client = await late.connect()
                turn.new, _ = await _async_pairs(late, late.make(f"{name}:new"), 0)
        except Exception as error:
            turn.failed = _failure(error, began)
    for each in (peer, late):
        if each is not None:
            await each.close()
    return turn


def _async_turn_here(*arguments: Any) -> Turn:
    return asyncio.run(_async_turn(*arguments))


@dataclass
class Spans:
    """For how long pairs are timed, in seconds."""

    before: float
    silent: float


Contenders = dict[str, tuple[Callable[..., Turn], Any]]
Turns = dict[tuple[str, int], list[Turn]]


def _contenders(nodes: Sequence[Server], notes: list[str]) -> Contenders:
    """Everybody; who cannot even take a free lock is left out with the reason."""
    everybody: Contenders = {f"blocking: {kind.title}": (_turn, kind) for kind in _quorum.PEERS}
    for kind in _aquorum.ASYNC_PEERS:
        everybody[f"asyncio: {kind.title}"] = _async_turn_here, kind
    found = {}
    for title, (turn, kind) in everybody.items():
        try:
            turn(kind, nodes, [], f"bench:{title}:check", Spans(0, 0))
            found[title] = turn, kind
        except Exception as error:
            notes.append(f"{title} is left out: {type(error).__name__}: {error}")
    return found


def _turns(quick: bool, notes: list[str]) -> Turns:
    rounds, counts = (1, (1, 2)) if quick else (5, (0, 1, 2))
    spans = Spans(0.2, 0.8) if quick else Spans(0.6, 2.0)
    turns: Turns = {}
    slow: set[tuple[str, int]] = set()
    with _fan.primaries(NODES) as nodes:
        contenders = _contenders(nodes, notes)
        for place in range(rounds):
            for title, (turn, kind) in list(contenders.items())[:: -1 if place % 2 else 1]:
                for count in counts:
                    if (title, count) in slow:
                        continue
                    silent = [nodes[(place + which) % NODES] for which in range(count)]
                    began = time.perf_counter()
                    done = turn(kind, nodes, silent, f"bench:{title}:{place}:{count}", spans)
                    turns.setdefault((title, count), []).append(done)
                    if time.perf_counter() - began > SLOW_S or done.failed:
                        slow.add((title, count))
    return turns


def _worst(found: Sequence[float | None]) -> float | None:
    return max((it for it in found if it is not None), default=None)


def _times(turns: Sequence[Turn]) -> float | None:
    return _median([it.times for it in turns if it.times is not None])


def _cells(turns: Sequence[Turn]) -> list[Any]:
    failed = next((it.failed for it in turns if it.failed), "")
    if failed:
        return [failed, None, None, None]
    first = _worst([it.first for it in turns])
    pair = _median([pair for it in turns for pair in it.pairs])
    new = _worst([it.new for it in turns])
    return [first and first * 1e3, new and new * 1e3, pair and pair * 1e6, _times(turns)]


def _rows(turns: Turns) -> list[list[Any]]:
    rows = []
    for title in dict.fromkeys(title for title, _ in turns):
        mine = {count: turns.get((title, count), []) for count in (0, 1, 2)}
        every = [before for each in mine.values() for it in each for before in it.before]
        none = _median(every)
        cells: list[Any] = [title, none and none * 1e6]
        for count in (1, 2):
            cells += _cells(mine[count])
        rows.append(cells)
    return rows


def _goals(turns: Turns, title: str) -> list[Goal]:
    one, two = turns.get((title, 1), []), turns.get((title, 2), [])
    grants = [it.first for it in (*one, *two)]
    return [
        Goal(f"1 of 5 silent / none, pair, {title}", _times(one), 1.05, at_least=False),
        Goal(
            f"worst first grant with 1 or 2 silent / a node's timeout, {title}",
            ratio(_worst(grants), NODE_S),
            1,
            at_least=False,
        ),
    ]


def _phases(turns: Sequence[Turn]) -> tuple[float | None, float | None]:
    """Times none, while the silence has not been noticed; and from then on."""
    early, later = [], []
    for turn in turns:
        base = _median(turn.before)
        elapsed = 0.0
        for pair in turn.pairs:
            if base:
                (early if elapsed < NODE_S else later).append(pair / base)
            elapsed += pair
    return _median(early), _median(later)


def _remarks(turns: Turns, title: str) -> list[str]:
    one = turns.get((title, 1), [])
    unnoticed, noticed = _phases(one)
    worst = _worst([max(it.pairs) for it in one if it.pairs])
    control = _times(turns.get((title, 0), []))
    return [
        f"{title}, 1 silent: times none in the first {NODE_S:g} s (nobody knows yet): "
        f"{number(unnoticed)}, afterwards (it is passed over): {number(noticed)}; worst pair "
        f"{number(worst and worst * 1e3)} ms; control (nobody silent, the same windows): "
        f"{number(control)}."
    ]


def silent(quick: bool) -> Section:
    """Section 3."""
    section = Section("silent", "3. Five primaries of which 0, 1, 2 are silent (SIGSTOP)")
    section.columns = ["", "none: pair us"]
    for count in (1, 2):
        section.columns += [f"{count}: first grant ms", "new client ms", "pair us", "x none"]
    turns = _turns(quick, section.notes)
    section.rows = _rows(turns)
    ours = [f"{colour}: {_quorum.Holdfast.title}" for colour in ("blocking", "asyncio")]
    for title in ours:
        section.goals += _goals(turns, title)
    section.notes = [
        "First grant: the first acquire after nodes fell silent, of a client that was connected to "
        "all (the worst of all rounds). New client: the same for one that comes later; not "
        f"measured where the first took more than {QUICK_S:g} s. `x none`: median pair over that "
        "just before in the same turn.",
        f"A node's timeout is {NODE_S:g} s, except: redlock-ng 0.1 s (its default); aioredlock "
        f"none (it is given {HUNG_S:g} s more than the others).",
        "An error instead of a grant: the library had a majority, or could have had one.",
        *(remark for title in ours for remark in _remarks(turns, title)),
        *section.notes,
    ]
    section.raw = {
        f"{title}, {count} silent": [_brief(it) for it in each]
        for (title, count), each in turns.items()
    }
    return section


def _brief(turn: Turn) -> dict[str, Any]:
    whole = asdict(turn)
    for name in ("before", "pairs"):
        seconds = whole.pop(name)
        middle = _median(seconds)
        whole[f"{name}_us"] = middle and round(middle * 1e6, 2)
        whole[f"{name}_count"] = len(seconds)
    return {**whole, "worst_pair": _worst(turn.pairs)}
