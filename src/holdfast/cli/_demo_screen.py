"""What `holdfast demo` shows while it plays: a live picture, plain lines, or nothing."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Final, Self

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from holdfast.cli._demo_history import History, Turn

_MEMORY = 400  # frames: more than any terminal is wide
_BAR = 14  # cells
_STYLES: Final = {
    "holds": "bold green",
    "waits": "dim",
    "killed": "bold red",
    "frozen": "bold cyan",
    "ended": "dim",
    "up": "green",
    "back, empty": "bold cyan",
}


class Player(msgspec.Struct):
    """One worker, as it is shown."""

    pid: int
    state: str = "starts"
    turns: int = 0
    past: deque[tuple[str, bool]] = msgspec.field(default_factory=lambda: deque(maxlen=_MEMORY))


class Board:
    """The state of the play."""

    def __init__(self, pids: dict[int, int], lease: float, nodes: int = 1) -> None:
        self.lease = lease
        self.nodes = dict.fromkeys(range(1, nodes + 1), "up")
        self.began = time.monotonic()
        self.players = {worker: Player(pid) for worker, pid in pids.items()}
        self.holder: Turn | None = None
        self.counter = 0

    def elapsed(self) -> float:
        """Seconds since the play began."""
        return time.monotonic() - self.began

    def show(self, history: History, frame_seconds: float) -> None:
        """Take over who holds, or has held since the last frame, and add a frame to every past."""
        self.holder = _holder(history, time.monotonic_ns() - int(frame_seconds * 1e9))
        self.counter = self.counter if self.holder is None else self.holder.value
        for worker, player in self.players.items():
            holds = self.holder is not None and self.holder.worker == worker
            if player.state in ("waits", "holds"):
                player.state = "holds" if holds else "waits"
            player.past.append((player.state, holds))


def _holder(history: History, since: int) -> Turn | None:
    turn = history.latest
    # A lease that is over is nobody's, even while its worker has not said so.
    return turn if turn is not None and turn.until > since else None


class Screen:
    """Tells the audience what happens. This one tells nothing."""

    def refresh(self, board: Board) -> None:
        """Time has passed."""

    def act(self, title: str, about: str) -> None:
        """An act begins."""

    def say(self, text: str, style: str = "") -> None:
        """Something happened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Plain(Screen):
    """Prints lines of ASCII, for logs and pipes."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._said = 0.0

    def refresh(self, board: Board) -> None:
        """A line of progress every two seconds in which nothing else was said."""
        if board.elapsed() - self._said >= 2:
            turns = sum(player.turns for player in board.players.values())
            self.say(f"{turns} turns so far")

    def act(self, title: str, about: str) -> None:
        """The title, and what it is about."""
        print(f"\n{title}: {about}", flush=True)
        self._said = time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """One line with the time."""
        self._said = time.monotonic() - self._began
        print(f"{self._said:6.2f} s  {text}", flush=True)


class Alive(Screen):
    """A picture at the bottom of the terminal that moves, and the comments above it."""

    def __init__(self, console: Console, began: float) -> None:
        self._console = console
        self._began = began
        self._utf = console.encoding.startswith("utf")
        # holds, holds though killed or frozen, killed or frozen, waits, lease, lease that is gone
        self._marks = "█▓░·━╌" if self._utf else "#%~.=-"
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def refresh(self, board: Board) -> None:
        """Draw the picture."""
        nodes = [_nodes(board)] if len(board.nodes) > 1 else []
        self._live.update(Group(_rule(self._utf), self._lanes(board), self._lock(board), *nodes))
        self._live.refresh()

    def act(self, title: str, about: str) -> None:
        """The title, and what it is about."""
        self._console.print(Text.assemble("\n", (title, "bold"), f": {about}"))

    def say(self, text: str, style: str = "") -> None:
        """One comment with the time; long ones stay in their column."""
        row = Table.grid(padding=(0, 2))
        row.add_row(Text(f"{time.monotonic() - self._began:6.2f} s", "dim"), Text(text, style))
        self._console.print(row)

    def _lanes(self, board: Board) -> Table:
        """A line for each worker. The strip has a mark where it held when a frame was drawn."""
        table = Table.grid(padding=(0, 2))
        width = max(8, self._console.width - 38)
        for worker, player in board.players.items():
            style = _STYLES.get(player.state, "")
            table.add_row(
                Text(f"worker {worker:<2}", style),
                Text(f"{player.pid:>7}", "dim"),
                Text(f"{player.state:<7}", style),
                Text(f"{player.turns:>5}"),
                self._strip(player, width),
            )
        return table

    def _strip(self, player: Player, width: int) -> Text:
        strip = Text()
        for state, holds in list(player.past)[-width:]:
            if state in ("killed", "frozen"):
                glyph = self._marks[1 if holds else 2]
            else:
                glyph = self._marks[0 if holds else 3]
            strip.append(glyph, _STYLES.get(state, "dim"))
        return strip

    def _lock(self, board: Board) -> Text:
        turn = board.holder
        text = Text(f"counter {board.counter:<7}", "dim", no_wrap=True)
        if turn is None:
            return text.append("nobody holds the lock")
        left = max(0.0, (turn.deadline - time.monotonic_ns()) / 1e9)
        done = min(_BAR, round(_BAR * left / board.lease))
        text.append(f"worker {turn.worker} holds, fence {turn.fence}  ", "not dim")
        text.append(self._marks[4] * done, "not dim yellow")
        text.append(self._marks[5] * (_BAR - done))
        return text.append(f" {left:.1f} s", "not dim yellow")


def _nodes(board: Board) -> Text:
    """Which servers are up, killed, or back without their memory."""
    words = [(f"{node} {state}", _STYLES[state], "   ") for node, state in board.nodes.items()]
    text = Text("nodes    ", "dim", no_wrap=True)
    for word, style, gap in words:
        text.append(word, f"not dim {style}").append(gap)
    return text


def _rule(utf: bool) -> Rule:
    return Rule(style="dim", characters="─" if utf else "-")


def chosen(as_json: bool, began: float) -> Screen:
    """The screen for this process's stdout."""
    if as_json:
        return Screen()
    console = Console()
    if sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return Alive(console, began)
    return Plain(began)
