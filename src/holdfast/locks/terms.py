"""What a lock was asked to be: its options, checked once, and shared by all its holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Self

import msgspec

from ..core.keeper import Keeper
from ..core.lease import (
    NS_PER_MS,
    NS_PER_S,
    Seconds,
    Validity,
    attempt_s,
    milliseconds,
    renewal_ns,
    seconds,
)
from ..core.quorum import Ballots
from ..core.runtime import Runtime
from ..core.script import Script
from ..errors import UsageError

MOST_KNOWN = 1024

OnLost = Literal["raise", "warn", "ignore"] | Callable[[Any], object]


class Unset:
    """Stands for "as the lock was made": None is a value (wait for ever)."""

    def __repr__(self) -> str:
        return "…"


UNSET: Final = Unset()
Wait = Seconds | None


class Kit(msgspec.Struct, frozen=True):
    """What a client gives its locks."""

    rt: Runtime
    keeper: Keeper
    validity: Validity
    timeout: float
    max_lease: float
    lock: Callable[..., Any]
    """The asyncio lock of this client: over one primary, or over several."""
    quarantine_ms: int = 0
    """For how long a node that may have forgotten its locks grants none; 0: it is not asked."""
    ballots: Ballots = msgspec.field(default_factory=Ballots)
    known: dict[tuple[object, ...], Any] = msgspec.field(default_factory=dict)
    """Options that were checked before, and the terms they make."""


class Standing(msgspec.Struct, frozen=True):
    """What the server says of a key: ours (`mine`), or who has it now."""

    mine: bool
    holder: str = ""
    forced: bool = False
    anew: bool = False
    """Ours, but only since now: it had forgotten us, or was never asked (several primaries)."""

    def __str__(self) -> str:
        return "has the lock" if self.mine else self.reason()

    def reason(self) -> str:
        """Why a hold that found this is lost."""
        if self.forced:
            return "released by force"
        return f"taken by {self.holder}" if self.holder else "expired or deleted"


class Terms(msgspec.Struct, frozen=True):
    """What all holds of one lock object have in common."""

    name: str
    keys: tuple[str, ...]
    lease_ms: int
    grace_ms: int
    life: str
    """Lease and grace in ms, as the scripts take them."""
    span_ns: int
    attempt: float
    pause_ns: int
    grain: int
    renew: bool
    max_hold_ns: int | None
    acks: int
    on_lost: OnLost
    renew_script: Script[Standing]
    release_script: Script[Standing]
    extra: tuple[str, ...]
    """What every script of the lock takes at the end of its arguments."""

    @classmethod
    def of(
        cls,
        kit: Kit,
        name: str,
        keys: tuple[str, ...],
        options: tuple[object, ...],
        scripts: tuple[Script[Any], Script[Standing]],
        extra: tuple[str, ...],
    ) -> Self:
        """The terms for lease, renew, max_hold, grace, acks, on_lost; checked once per client.

        `with hf.lock(f"order:{n}")` makes a lock for every use, so making one must cost little.
        """
        # True == 1 == 1.0: what is right for one may be wrong for another.
        known = (scripts, options, tuple(map(type, options)))
        try:
            found = kit.known.get(known)
        except TypeError:  # something that cannot be hashed cannot be right either
            return cls._checked(kit, *options, scripts=scripts, extra=extra)
        if found is None:
            found = cls._checked(kit, *options, scripts=scripts, extra=extra)
            if len(kit.known) < MOST_KNOWN:
                kit.known[known] = found
        return msgspec.structs.replace(found, name=name, keys=keys)

    @classmethod
    def _checked(
        cls,
        kit: Kit,
        lease: object,
        renew: object,
        max_hold: object,
        grace: object,
        acks: object,
        on_lost: object,
        *,
        scripts: tuple[Script[Any], Script[Standing]],
        extra: tuple[str, ...],
    ) -> Self:
        if not isinstance(renew, bool):
            raise UsageError(f"renew={renew!r} must be True or False")
        lease_ms = kit.validity.checked_lease_ms(lease, most=kit.max_lease)
        grace_ms = milliseconds(seconds(grace, "grace", most=kit.max_lease))
        limit = None if max_hold is None else seconds(max_hold, "max_hold", least=0.001)
        span = kit.validity.span_ns(lease_ms)
        return cls(
            name="",
            keys=(),
            lease_ms=lease_ms,
            grace_ms=grace_ms,
            life=str(lease_ms + grace_ms),
            span_ns=span,
            attempt=attempt_s(span, kit.timeout),
            pause_ns=renewal_ns(span, kit.timeout),
            # A loss may be signalled this much early, never late: 0.4 % of the lease.
            grain=max(NS_PER_MS, span >> 8),
            renew=renew,
            max_hold_ns=None if limit is None else int(limit * NS_PER_S),
            acks=checked_acks(acks),
            on_lost=checked_on_lost(on_lost),
            renew_script=scripts[0],
            release_script=scripts[1],
            extra=extra,
        )


def checked_wait(wait: object) -> float | None:
    """A wait in seconds, None for unbounded, or a UsageError."""
    return None if wait is None else seconds(wait, "wait", least=0.0)


def checked_acks(acks: object) -> int:
    if acks is None:
        return 0
    if acks == "all":
        return -1
    if isinstance(acks, bool) or not isinstance(acks, int) or acks < 1:
        raise UsageError(f"acks={acks!r} must be a number of replicas >= 1, 'all' or None")
    return acks


def checked_label(label: object) -> str:
    if label is None:
        return ""
    if not isinstance(label, str) or len(label) > 200 or not label.isprintable():
        raise UsageError(f"label={label!r} must be a printable str of at most 200 characters")
    return label


def checked_on_lost(on_lost: object) -> OnLost:
    if callable(on_lost) or on_lost in ("raise", "warn", "ignore"):
        return on_lost
    raise UsageError(f"on_lost={on_lost!r} must be 'raise', 'warn', 'ignore' or a function")
