"""The events that a client tells its observers: `client.subscribe(observer, [events.Lost])`."""

from .core.events import (
    Acquiring,
    Event,
    Granted,
    InboxFailed,
    Lost,
    Observer,
    Refused,
    Released,
    ReleaseFailed,
    RenewalFailed,
    Renewed,
    Waiting,
)

__all__ = [
    "Acquiring",
    "Event",
    "Granted",
    "InboxFailed",
    "Lost",
    "Observer",
    "Refused",
    "ReleaseFailed",
    "Released",
    "RenewalFailed",
    "Renewed",
    "Waiting",
]
