"""A worker process of `holdfast demo`: `python -m holdfast.cli._demo_worker TERMS`.

It takes turns: lock, read the counter, work a little, write the counter plus one, unlock.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

import msgspec

import holdfast
from holdfast import Hold, Lock, LockLost
from holdfast.cli._demo_account import Account, RefusedError
from holdfast.cli._demo_messages import (
    GO,
    LINGER,
    STOP,
    WRITE,
    Done,
    Failed,
    Holding,
    Prolonged,
    Ready,
    Report,
    Terms,
)
from holdfast.events import Event, Renewed

_WORK_SECONDS = (0.010, 0.020)


def say(report: Report) -> None:
    """Report to the demo. Threads may call it: so short a write to a pipe is not divided."""
    os.write(1, msgspec.json.encode(report) + b"\n")


def deadline(remaining: float) -> int:
    """The instant until which a hold with `remaining` seconds is valid."""
    return time.monotonic_ns() + int(remaining * 1e9)


class Orders:
    """What the demo has ordered on stdin. A thread listens, and ends the process with stdin."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.write = threading.Event()
        self.stop = threading.Event()
        self.linger = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        known = {GO: self.go, WRITE: self.write, STOP: self.stop, LINGER: self.linger}
        rest = b""
        # os.read, because an interpreter cannot shut down while a thread is inside sys.stdin.
        while data := os.read(0, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                known[line + b"\n"].set()
        os._exit(0)  # the demo is gone, however it went: so are we, whatever we hold


class Turns:
    """Takes turns with the account until it is told to stop."""

    def __init__(self, lock: Lock, account: Account, orders: Orders) -> None:
        self._lock = lock
        self._account = account
        self._orders = orders

    def take(self) -> None:
        """One turn, reported at its beginning and at its end."""
        asked = time.monotonic_ns()
        done: Done | None = None
        try:
            with self._lock as hold:
                done = self._body(hold, asked)
        except LockLost as lost:
            if done is None:
                raise
            done = msgspec.structs.replace(done, lost=lost.reason)
        say(done)

    def _body(self, hold: Hold, asked: int) -> Done:
        granted = time.monotonic_ns()
        lingers = self._orders.linger.is_set()
        value, refused = 0, None
        try:
            value = self._account.enter(hold.fence)
            until = deadline(hold.remaining())
            say(Holding(hold.fence, asked, granted, until, value, lingers, hold.owner))
            self._work(lingers)
            # No hold.ensure() here: this is the process that stops between the check and the write.
            self._account.write(hold.fence, value + 1)
        except RefusedError as error:
            refused = error
        ended, left = time.monotonic_ns(), hold.remaining()
        until = deadline(left) if left else 0
        if refused is None:
            return Done(ended, until, value + 1, True)
        return Done(ended, until, value + 1, False, refused.value, refused.fence)

    def _work(self, lingers: bool) -> None:
        if lingers:
            self._orders.linger.clear()
            self._orders.write.wait(30)
            self._orders.write.clear()
        else:
            time.sleep(random.uniform(*_WORK_SECONDS))


def _prolonged(event: Event) -> None:
    if isinstance(event, Renewed):
        say(Prolonged(deadline(event.remaining)))


def main() -> None:
    """Take turns until told to stop. Status 1, and a `Failed`, if that is not possible."""
    terms = msgspec.json.decode(sys.argv[1], type=Terms)
    orders = Orders()
    account = Account(Path(terms.account), fenced=terms.fenced)
    try:
        with holdfast.connect(terms.target, max_lease=terms.max_lease, guard=terms.guard) as hf:
            hf.subscribe(_prolonged, [Renewed])
            lock = hf.lock(terms.name, lease=terms.lease, label=f"worker {terms.worker}")
            turns = Turns(lock, account, orders)
            say(Ready())
            orders.go.wait()
            while not orders.stop.is_set():
                turns.take()
                time.sleep(terms.rest)
    except Exception as error:
        say(Failed(f"{type(error).__name__}: {error}"[:1000]))
        raise SystemExit(1) from None
    finally:
        account.close()


if __name__ == "__main__":
    main()
