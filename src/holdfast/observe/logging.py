"""Events as log records of the logger `holdfast`.

What an operator must see is WARNING (a lost hold, a renewal or release that failed, no inbox); the
rest is DEBUG, and is subscribed to only if the logger wants it when the client is made.
"""

from __future__ import annotations

import logging

import msgspec

from ..core.events import (
    KINDS,
    Event,
    Hub,
    InboxFailed,
    Lost,
    ReleaseFailed,
    RenewalFailed,
)

logger = logging.getLogger("holdfast")
SERIOUS: frozenset[type[Event]] = frozenset({Lost, RenewalFailed, ReleaseFailed, InboxFailed})


def observe(event: Event) -> None:
    """Write one event as one record; its fields are in `extra` under `holdfast`."""
    level = logging.WARNING if type(event) in SERIOUS else logging.DEBUG
    if logger.isEnabledFor(level):
        fields = msgspec.structs.asdict(event)
        words = " ".join(f"{key}={value!r}" for key, value in fields.items() if key != "name")
        what = type(event).__name__.lower()
        logger.log(level, "%s %r: %s", what, event.name, words, extra={"holdfast": fields})


def attach(hub: Hub) -> None:
    """Subscribe the logger."""
    hub.subscribe(observe, KINDS if logger.isEnabledFor(logging.DEBUG) else SERIOUS)
