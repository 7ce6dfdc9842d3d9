"""Every error of holdfast, on one page.

HoldfastError                         all: `.name` is the object's name; they survive pickling
├── UsageError(ValueError)            you: a bad argument or a wrong flow; nothing was sent
├── Unavailable                       the world: it could not be decided
│   ├── NodeError(ConnectionError)    one node; `.sent` says whether it may have acted
│   ├── NotReplicated                 the node acted, but too few replicas confirmed it
│   └── QuorumError                   a majority cannot decide; `.votes` says which node said what
├── Timeout(TimeoutError)             time: the wait was over first
│   └── LockTimeout                   `.holder` is who held it, as far as the server knew
├── LockLost                          you held it and no longer do; `.reason`, `.result`
└── ServerNotFound                    no server binary for development is at hand
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _rebuild(kind: type[HoldfastError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    # Not kind(*args): subclasses take keyword-only facts, which BaseException's own pickling loses.
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class HoldfastError(Exception):
    """Base of every error that holdfast raises. `name` is the lock (or other object) concerned."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class UsageError(HoldfastError, ValueError):
    """An argument or a call that cannot be right. Raised before anything is sent.

    One is found by the server only: a key of another type at the name of the lock.
    """


class Unavailable(HoldfastError):
    """The servers could not give an answer: the outcome is not known, or was not decided."""


class NodeError(Unavailable, ConnectionError):
    """One node did not answer, or answered that it cannot serve.

    `sent` is False when the node surely did not act, True when it may have acted. `transient` is
    False when asking again cannot help, such as for want of a permission.
    """

    def __init__(
        self,
        message: str,
        *,
        node: str = "",
        sent: bool = False,
        transient: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(message, name=name)
        self.node = node
        self.sent = sent
        self.transient = transient


class NotReplicated(Unavailable):
    """The node acted, but fewer replicas than asked for confirmed it in time (`acks=`)."""

    def __init__(
        self, message: str, *, wanted: int = 0, got: int = 0, name: str | None = None
    ) -> None:
        super().__init__(message, name=name)
        self.wanted = wanted
        self.got = got


class QuorumError(Unavailable):
    """A majority of the nodes could not decide. `votes` maps each node to what it said.

    `sent` is False when surely no node acted; `transient` is False when asking again cannot help.
    """

    def __init__(
        self,
        message: str,
        *,
        votes: Mapping[str, str] | None = None,
        sent: bool = True,
        transient: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(message, name=name)
        self.votes = dict(votes or {})
        self.sent = sent
        self.transient = transient


class Timeout(HoldfastError, TimeoutError):
    """The time given was over before the thing happened. `waited` is in seconds."""

    def __init__(self, message: str, *, waited: float = 0.0, name: str | None = None) -> None:
        super().__init__(message, name=name)
        self.waited = waited


class LockTimeout(Timeout):
    """The lock was not granted in time. `holder` is the owner id seen last, or None."""

    def __init__(
        self,
        message: str,
        *,
        waited: float = 0.0,
        holder: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(message, waited=waited, name=name)
        self.holder = holder


class LockLost(HoldfastError):
    """You held the lock and no longer do.

    `reason` says how: "expired", "expired or deleted", "taken by <owner>", "released by force",
    "max_hold reached", "replaced by another kind of value", or "held by another process" (after a
    fork). `result` is what a decorated function had returned when the loss was noticed, so that
    finished work is not thrown away.
    """

    def __init__(
        self, message: str, *, reason: str = "", result: object = None, name: str | None = None
    ) -> None:
        super().__init__(message, name=name)
        self.reason = reason
        self.result = result


class ServerNotFound(HoldfastError):
    """No Valkey or Redis server binary was found for development or tests."""


class LockLostWarning(UserWarning):
    """Issued instead of `LockLost` by locks made with `on_lost="warn"`."""
