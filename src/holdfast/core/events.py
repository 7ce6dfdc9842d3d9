"""Events: what a client tells its observers. Protocols emit them; logging and metrics subscribe.

Every event carries the lock's name and the owner id of the hold or wait concerned. Times are
seconds. An observer is a plain function of one event; it runs in the flow that emitted, so it must
be quick. What it raises is swallowed: observing must never change what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec


class Event(msgspec.Struct, frozen=True):
    """Something that happened to one lock."""

    name: str
    owner: str


class Acquiring(Event, frozen=True):
    """An acquire begins; `wait` is the patience in seconds, None for unbounded."""

    wait: float | None


class Waiting(Event, frozen=True):
    """The lock is taken and the acquire is queued at `position` (0 is next)."""

    position: int
    holder: str


class Granted(Event, frozen=True):
    """The lock is held, after `waited` seconds."""

    fence: int
    waited: float


class Refused(Event, frozen=True):
    """The acquire ended without the lock, after `waited` seconds."""

    waited: float
    holder: str | None


class Renewed(Event, frozen=True):
    """The lease was prolonged; it may be believed for `remaining` more seconds."""

    remaining: float


class RenewalFailed(Event, frozen=True):
    """An attempt to renew failed; it is repeated while the lease lasts (`remaining` seconds)."""

    error: str
    remaining: float


class Lost(Event, frozen=True):
    """The holder no longer holds. Sent once per hold."""

    fence: int
    reason: str


class Released(Event, frozen=True):
    """The holder gave the lock back, after holding it for `held` seconds."""

    fence: int
    held: float


class ReleaseFailed(Event, frozen=True):
    """A block ended, but the release did not reach the server: the lease will end by itself."""

    error: str


class InboxFailed(Event, frozen=True):
    """Wake-up messages cannot be received: waiting goes on by looking, which is slower.

    `owner` is the inbox, `name` the node.
    """

    error: str


Observer = Callable[[Event], None]


class Hub:
    """Who observes what. Emitting to nobody costs one set lookup."""

    def __init__(self) -> None:
        self._observers: tuple[tuple[Observer, frozenset[type[Event]]], ...] = ()
        self._wanted: frozenset[type[Event]] = frozenset()

    def subscribe(
        self, observer: Observer, kinds: Iterable[type[Event]] | None = None
    ) -> Callable[[], None]:
        """Call `observer` for every event of these kinds (all if None). Returns the undo."""
        entry = (observer, frozenset(kinds if kinds is not None else KINDS))
        self._set((*self._observers, entry))
        return lambda: self._set(tuple(e for e in self._observers if e is not entry))

    def _set(self, observers: tuple[tuple[Observer, frozenset[type[Event]]], ...]) -> None:
        self._observers = observers
        self._wanted = frozenset().union(*(kinds for _, kinds in observers))

    def wants(self, kind: type[Event]) -> bool:
        return kind in self._wanted

    def emit(self, event: Event) -> None:
        for observer, kinds in self._observers:
            if type(event) in kinds:
                try:
                    observer(event)
                except Exception:
                    pass


KINDS: frozenset[type[Event]] = frozenset(
    {
        Acquiring,
        Waiting,
        Granted,
        Refused,
        Renewed,
        RenewalFailed,
        Lost,
        Released,
        ReleaseFailed,
        InboxFailed,
    }
)
