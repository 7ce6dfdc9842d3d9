"""Where the acts of `holdfast demo` play: the workers, their history, and the time that passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.cli._demo_crew import Crew
from holdfast.cli._demo_history import History, Turn
from holdfast.cli._demo_messages import GO, LINGER, STOP, Done, Ended, Failed, Holding, Ready
from holdfast.cli._demo_messages import Report as Message
from holdfast.cli._demo_report import Findings
from holdfast.cli._demo_screen import Board, Screen
from holdfast.server import Server

T = TypeVar("T")

FRAME_SECONDS = 0.08
PATIENCE_SECONDS = 10.0


class StuckError(Exception):
    """What the play waits for does not come. The message says what it was."""


class Stage:
    """What an act needs: it lets time pass, and gives the workers their cues."""

    def __init__(
        self, crew: Crew, board: Board, screen: Screen, nodes: Sequence[Server], name: str
    ) -> None:
        self.crew = crew
        self.board = board
        self.screen = screen
        self.nodes = nodes
        self.name = name
        self.history = History()
        self.findings = Findings()
        self._drawn = 0.0
        self._ready: set[int] = set()
        self._ended: set[int] = set()

    # ── time ───────────────────────────────────────────────────────────────────────────────────

    def play(self, seconds: float) -> None:
        """Let the workers go on for so long."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self._frame(min(left, FRAME_SECONDS))

    def until(self, found: Callable[[], T | None], what: str) -> T:
        """Let the workers go on until `found` returns something. Raises StuckError in the end."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while (value := found()) is None:
            if time.monotonic() > ends:
                raise StuckError(f"{what}: not within {PATIENCE_SECONDS:g} s")
            self._frame(FRAME_SECONDS)
        return value

    def _frame(self, seconds: float) -> None:
        for worker, message in self.crew.hear(seconds):
            self._take(worker, message)
        if time.monotonic() - self._drawn >= FRAME_SECONDS:
            self._drawn = time.monotonic()
            self.board.show(self.history, FRAME_SECONDS)
            self.screen.refresh(self.board)

    def _take(self, worker: int, message: Message) -> None:
        self.history.take(worker, message)
        if isinstance(message, Ready):
            self._ready.add(worker)
        elif isinstance(message, Holding):
            self.board.players[worker].turns += 1
        elif isinstance(message, Failed):
            self.findings.trouble.append(f"worker {worker} failed: {message.error}")
        elif isinstance(message, Ended):
            self._ended.add(worker)
            player = self.board.players[worker]
            if player.state not in ("killed", "ended"):
                raise StuckError(f"worker {worker} has ended by itself")

    # ── cues ───────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Wait until every worker is connected, and let them all go at once."""
        everybody = set(self.board.players)
        self.until(lambda: True if self._ready == everybody else None, "workers connect")
        for player in self.board.players.values():
            player.state = "waits"
        self.crew.tell(GO)

    def end(self) -> None:
        """Have every worker finish its turn, and wait for their ends."""
        for player in self.board.players.values():
            if player.state != "killed":
                player.state = "ended"
        self.crew.tell(STOP)
        everybody = set(self.board.players)
        self.until(lambda: True if self._ended == everybody else None, "workers end")

    def caught(self, worker: int) -> Turn:
        """Have this worker keep the lock in its next turn; returns that turn while it lasts."""

        def lingering() -> Turn | None:
            turn = self.history.open(worker)
            return turn if turn is not None and turn.lingers else None

        self.crew.tell(LINGER, worker)
        return self.until(lingering, f"worker {worker} holds the lock")

    def next_after(self, turn: Turn) -> Turn:
        """The next grant to another worker."""
        return self.until(lambda: self.history.after(turn), "another worker goes on")

    def end_of(self, turn: Turn) -> Done:
        """What the worker reports at the turn's end."""
        return self.until(lambda: turn.done, f"worker {turn.worker} ends its turn")

    def mark(self, worker: int, state: str, *, fate: str = "") -> None:
        """Show the worker in this state from now on, and its fate in the result."""
        self.board.players[worker].state = state
        if fate:
            self.findings.fates[worker] = fate
