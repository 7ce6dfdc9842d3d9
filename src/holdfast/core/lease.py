"""Leases: durations that users give, and how long a grant may be believed.

    k = (1 - rho_c) / (1 + rho_s)            clocks of client and server run apart by `drift` in all
    D = t + (lease - step - skew) * k - 2 ms      t: the clock just before the counted send

The holder believes in its lock before D and never after. `step` is the largest forward step of a
server's wall clock during a lease, `skew` the largest clock offset between a primary and the
replica that may replace it; both are 0 unless the client was told otherwise. The 2 ms cover the
server's cached clock and rounding. See docs/guarantees.md.
"""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec

from ..errors import UsageError

Seconds = float | int | timedelta

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
ROUNDING_NS = 2 * NS_PER_MS


# Longer than anybody waits; what is longer is a mistake, and overflows somewhere.
LONGEST_S = 1e10


def seconds(value: object, what: str, *, least: float = 0.0, most: float = LONGEST_S) -> float:
    """`value` as seconds between `least` and `most`, or a UsageError that names it and the fix."""
    if isinstance(value, timedelta):
        given = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            given = float(value)
        except OverflowError:  # an int of more than 308 digits
            given = math.inf if value > 0 else -math.inf
    else:
        raise UsageError(
            f"{what} must be seconds (int, float or timedelta), not {type(value).__name__}: "
            f"{value!r}"
        )
    if math.isnan(given):
        raise UsageError(f"{what} must be a number of seconds, not NaN")
    if given < least:
        raise UsageError(f"{what}={_shown(value)} is too small: at least {least:g} s")
    if given > most:
        unbounded = "; None is without bound" if what in {"wait", "max_hold"} else ""
        raise UsageError(f"{what}={_shown(value)} is too large: at most {most:g} s{unbounded}")
    return given


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    return repr(value)


def milliseconds(value: float) -> int:
    """Seconds as whole milliseconds, rounded up, as Redis takes them."""
    return max(0, math.ceil(round(value * 1000, 6)))


class Validity(msgspec.Struct, frozen=True):
    """How long a grant may be believed, given what is assumed of the clocks."""

    drift: float = 0.01
    step_ms: int = 0
    skew_ms: int = 0

    def span_ns(self, lease_ms: int) -> int:
        """For how long after the send a lease of `lease_ms` may be believed. May be negative."""
        counted = (lease_ms - self.step_ms - self.skew_ms) * NS_PER_MS
        return math.floor(counted * (1 - self.drift)) - ROUNDING_NS

    def deadline(self, sent_ns: int, lease_ms: int) -> int:
        """D: from this instant on the lock is not held any more, whatever anybody says."""
        return sent_ns + self.span_ns(lease_ms)

    def checked_lease_ms(self, lease: object, *, most: float) -> int:
        """A lease in ms, refused if it is malformed, too long, or would be over before it began."""
        lease_ms = milliseconds(seconds(lease, "lease", least=0.001, most=most))
        if self.span_ns(lease_ms) <= 0:
            raise UsageError(
                f"lease={lease!r} could never be believed: clock drift and rounding take "
                f"{(lease_ms * NS_PER_MS - self.span_ns(lease_ms)) / NS_PER_S:g} s of it. "
                "Give a longer lease"
            )
        return lease_ms


def attempt_s(span_ns: int, timeout: float) -> float:
    """How long one attempt to renew may take, so that several fit into a lease."""
    return min(timeout, span_ns / NS_PER_S / 6)


def renewal_ns(span_ns: int, timeout: float, failures: int = 2) -> int:
    """When to renew: early enough that `failures` attempts of the worst duration may fail first.

    I <= (V - a) / (m + 1)
    """
    return int((span_ns - attempt_s(span_ns, timeout) * NS_PER_S) / (failures + 1))
