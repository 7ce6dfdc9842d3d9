"""Driving a coroutine to its n-th suspension, and cancelling it exactly there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class CancelAt:
    """Awaits `work`; its task is cancelled while it is suspended for the `at`-th time.

    `steps` counts the suspensions that there were, so that a test can try each of them.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._at = at
        self.steps = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        inner = self._work.__await__()
        error: BaseException | None = None
        while True:
            try:
                step = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            self.steps += 1
            if self.steps == self._at:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                yield step
            except BaseException as thrown:
                error = thrown


class InterruptAt:
    """Raises KeyboardInterrupt at the `at`-th of the wrapped calls, before or after it is made.

    Only in the thread that made it: Ctrl-C does not reach the others either.
    """

    def __init__(self, at: int, after: bool) -> None:
        self._at = at
        self._after = after
        self.calls = 0
        self._thread = threading.get_ident()

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with the interruption."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self.calls += 1
            mine = self.calls == self._at
            if mine and not self._after:
                raise KeyboardInterrupt
            result = function(*args, **kwargs)
            if mine:
                raise KeyboardInterrupt
            return result

        return wrapped
