"""Worker processes, started once and told by name what to do. A worker that hangs is ended."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import traceback
from collections.abc import Sequence
from typing import Any

_context = multiprocessing.get_context("spawn")  # nothing inherited: no sockets, no threads


class Failed(Exception):
    """A worker reported an error, or nothing at all."""


def _serve(pipe: Any, shared: Any) -> None:
    """In the worker: run "module:function" with the given arguments until told to end."""
    logging.getLogger().addHandler(logging.NullHandler())  # peers log what is expected here
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        if order is None:
            return
        where, arguments = order
        module, _, function = where.partition(":")
        try:
            work = getattr(importlib.import_module(module), function)
            pipe.send((True, work(shared, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc(limit=-2)))


class Workers:
    """So many processes, with a small array of shared integers between them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.shared = _context.RawArray("q", 16)
        self._crew: list[tuple[Any, Any]] = []

    def start(self) -> None:
        """Start those that do not run; they import what they need with their first order."""
        while len(self._crew) < self.count:
            near, far = _context.Pipe()
            process = _context.Process(target=_serve, args=(far, self.shared), daemon=True)
            process.start()
            far.close()
            self._crew.append((process, near))

    def all(self, where: str, arguments: Sequence[Sequence[Any]], patience: float) -> list[Any]:
        """Have every worker do one thing, each with its own arguments; their results."""
        self.start()
        for (_, pipe), mine in zip(self._crew, arguments, strict=True):
            pipe.send((where, tuple(mine)))
        results = []
        for _, pipe in self._crew:
            if not pipe.poll(patience):
                self.stop()
                raise Failed(f"no answer within {patience:g} s")
            try:
                good, result = pipe.recv()
            except EOFError:
                self.stop()
                raise Failed("a worker process ended") from None
            results.append((good, result))
        for good, result in results:
            if not good:
                raise Failed(result.strip().splitlines()[-1])
        return [result for _, result in results]

    def stop(self) -> None:
        """End the processes of this crew."""
        crew, self._crew = self._crew, []
        for process, pipe in crew:
            pipe.close()
            process.terminate()
        for process, _ in crew:
            process.join(5)
