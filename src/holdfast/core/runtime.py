"""The runtime port: all that a protocol may ask of the world, and `run()`.

Every protocol of holdfast is written once, as a plain `async def` over this port. Three runtimes
implement it: blocking (drivers/blocking.py), asyncio (drivers/asyncio.py) and, for the simulator,
one with virtual time. A protocol awaits these verbs and other protocols, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, overload

from ..errors import HoldfastError
from .events import Event
from .script import Call

T = TypeVar("T")


class Signal(Protocol):
    """A sticky wake-up for one waiter: `set` may come before the wait, and is then not lost."""

    def set(self, look_ms: int | None = None) -> None:
        """Wake the waiter, now or when it comes. Any thread may call it.

        With `look_ms` it is only told when to look; a wake-up without it wins over any number.
        """
        ...

    def told(self) -> int | None:
        """What the last wake-up said: look in so many ms, or None: look now. Asked once."""
        ...


class Scope(Protocol):
    """The body of a `with` block, as far as the runtime can interrupt it."""

    def interrupt(self) -> None:
        """Ask the body to end: asyncio cancels its task; a thread cannot be interrupted."""
        ...

    async def close(self, error: BaseException | None) -> bool:
        """Leave the scope. True if `error` is the interruption that this scope itself asked for."""
        ...


class Runtime(Protocol):
    """The world. Times are integer nanoseconds on one monotonic clock, durations float seconds."""

    @property
    def epoch(self) -> int:
        """Changes when earlier holds belong to somebody else: after a fork, in a new event loop."""
        ...

    @property
    def inbox(self) -> str:
        """The channel on which servers reach this client."""
        ...

    @property
    def nodes(self) -> Sequence[str]:
        """The names of the deployments: one, or several independent primaries."""
        ...

    def now(self) -> int:
        """Monotonic time in ns; counts through suspend, and is never slowed by clock adjustment."""
        ...

    def wall(self) -> int:
        """The wall clock in ns. It may jump: good for proposing fences, for nothing else."""
        ...

    def me(self) -> object:
        """The calling flow: a thread, a task, a simulated process."""
        ...

    def token(self, label: str) -> str:
        """A new owner id: 128 random bits, then host, process and label for people to read."""
        ...

    def jitter(self, low: float, high: float) -> float:
        """A random number between the two."""
        ...

    async def call(self, call: Call[T]) -> T:
        """One exchange. Raises NodeError (its `sent` tells whether the server may have acted)."""
        ...

    @overload
    async def fan_out(self, calls: Sequence[Call[T]]) -> list[T | HoldfastError]: ...
    @overload
    async def fan_out(
        self, calls: Sequence[Call[T]], enough: Callable[[T | HoldfastError], bool]
    ) -> list[T | HoldfastError | None]: ...
    async def fan_out(
        self,
        calls: Sequence[Call[T]],
        enough: Callable[[T | HoldfastError], bool] | None = None,
    ) -> Sequence[T | HoldfastError | None]:
        """All calls at once; each answer, or what went wrong, in the order of the calls.

        `enough` is told every answer as it comes; once it says True nobody is waited for any more.
        What had not answered by then is None: it may act yet, and stays in order with what is tied
        to the same word. Calls that are `final` are brought to their nodes all the same.
        """
        ...

    def signal(self) -> Signal:
        """A new wake-up, private to this process."""
        ...

    def listen(self, mailbox: str) -> Signal:
        """From now on, messages to `mailbox` in this client's inbox set the signal returned."""
        ...

    def unlisten(self, mailbox: str) -> None:
        """Forget the mailbox, and the connection kept for calls tied to its name."""
        ...

    async def wait(self, signal: Signal, timeout: float, *, inbox: bool = False) -> bool:
        """Wait for the signal (True) or the timeout (False). May wake early, never late.

        With `inbox` the client's inbox is opened first where it is not, and the wait ends at once
        when it had to be: a message may have passed before. It also ends when the inbox is lost.
        """
        ...

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the caller until it ends or the client is closed."""
        ...

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end even if the caller is cancelled meanwhile; then stay cancelled."""
        ...

    def guard(self) -> AbstractContextManager[Any]:
        """A mutual exclusion between threads; nothing where flows cannot interleave."""
        ...

    def scope(self) -> Scope:
        """The block that the calling flow is about to enter."""
        ...

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody observes this kind of event, so that nobody pays for making it."""
        ...

    def emit(self, event: Event) -> None:
        """Tell the observers. Never raises."""
        ...


def run(protocol: Coroutine[Any, Any, T]) -> T:
    """Finish a protocol over the blocking runtime, whose awaits return where they stand.

    This is why a reader meets `async def` under a blocking call: the coroutine never suspends, so
    one `send` runs it from start to end in the caller's thread.
    """
    try:
        protocol.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    protocol.close()
    raise AssertionError(f"{protocol!r} suspended: a protocol awaits its runtime, and nothing else")
