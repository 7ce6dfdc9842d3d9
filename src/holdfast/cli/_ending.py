"""How commands end early: with a reason, or because a signal asks them to."""

from __future__ import annotations

import signal
from typing import NoReturn

import typer

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Asked(BaseException):
    """A signal asked us to end. Not an Exception, so that nothing on the way catches it."""


def heed_signals() -> None:
    """Have `Asked` raised in the main thread by the first signal that asks this process to end."""
    for number in _SIGNALS:
        signal.signal(number, _on_signal)


def _on_signal(*_: object) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second one would cut the cleaning up short
    raise Asked


def fail(message: str, status: int) -> NoReturn:
    """Say on stderr what is wrong, and exit with this status."""
    typer.echo(f"holdfast: {message}", err=True)
    raise typer.Exit(status)
