"""The keeper: one per client. It renews every hold in time, and says so when one is lost.

Two loops beside the caller. The *renewer* sends renewals in batches. The *watcher* does no I/O at
all: it signals loss at a hold's own deadline even while a renewal hangs. Both know holds by weak
reference only, so a hold that was dropped is renewed no more. They start with the first hold and
end when there has been nothing to keep for a while.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from ..errors import HoldfastError, NodeError
from .lease import NS_PER_S
from .runtime import Runtime, Signal
from .script import Call
from .timers import Timers

IDLE_S = 5.0


class Keepable(Protocol):
    """What the keeper must know of a hold. Times in ns on the runtime's clock."""

    ident: int
    loss_key: int
    renew_key: int

    @property
    def grain(self) -> int: ...
    @property
    def deadline(self) -> int: ...
    @property
    def renew_at(self) -> int | None: ...
    def renewals(self) -> Sequence[Call[Any]]:
        """The calls that renew, one for each node; none if there is nothing to renew any more."""
        ...

    def renewed(self, sent: int, answers: Sequence[Any | HoldfastError]) -> None:
        """Take the answers to the renewals sent at `sent`; sets the next `renew_at`."""
        ...

    def overdue(self, now: int) -> None:
        """The deadline as it was last known has come: signal the loss if it still stands."""
        ...

    @property
    def active(self) -> bool:
        """Whether it is held."""
        ...


Ref = weakref.ref[Any]


class _Loop:
    """One loop's timers and its sleep."""

    def __init__(self, rt: Runtime) -> None:
        self.timers: Timers[Ref] = Timers()
        self.signal: Signal = rt.signal()
        self.running = False
        self.started_at = 0
        self.sleeps_until = 0


class Keeper:
    """Renews and watches holds. Safe to call from any flow of the client."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._reset()

    def _reset(self) -> None:
        # After a fork or in a new event loop: the loops are gone, the guard may be locked for ever.
        self._epoch = self._rt.epoch
        self._closed = False
        self.guard = self._rt.guard()
        self._renewals = _Loop(self._rt)
        self._losses = _Loop(self._rt)

    def add(self, hold: Keepable) -> None:
        """Keep this hold from now on."""
        if self._epoch != self._rt.epoch:
            self._reset()
        ref = weakref.ref(hold)
        with self.guard:
            start_losses = self._plan_loss(hold, ref)
            start_renewals = self._plan_renewal(hold, ref)
        if start_losses:
            self._start("holdfast-watcher", self._losses, self._watch)
        if start_renewals:
            self._start("holdfast-renewer", self._renewals, self._renew)

    def moved(self, hold: Keepable) -> None:
        """Its deadline may have come closer: a node turned out not to vouch."""
        start = False
        with self.guard:
            if hold.active and hold.deadline < hold.loss_key:
                self._losses.timers.discard(hold.loss_key, hold.ident)
                start = self._plan_loss(hold, weakref.ref(hold))
        if start:
            self._start("holdfast-watcher", self._losses, self._watch)

    def forget(self, hold: Keepable) -> None:
        """Keep it no longer."""
        with self.guard:
            self._losses.timers.discard(hold.loss_key, hold.ident)
            self._renewals.timers.discard(hold.renew_key, hold.ident)

    def kept(self) -> int:
        """How many holds are being watched."""
        with self.guard:
            return len(self._losses.timers)

    def close(self) -> None:
        """End both loops. Holds that remain are lost when their leases end."""
        self._closed = True
        self._losses.signal.set()
        self._renewals.signal.set()

    # Both under the guard; they tell whether their loop must be started.

    def _plan_loss(self, hold: Keepable, ref: Ref) -> bool:
        loop = self._losses
        hold.loss_key = loop.timers.add(hold.deadline, hold.grain, hold.ident, ref)
        return self._planned(loop, hold.loss_key)

    def _plan_renewal(self, hold: Keepable, ref: Ref) -> bool:
        when = hold.renew_at
        if when is None:
            return False
        loop = self._renewals
        hold.renew_key = loop.timers.add(when, hold.grain, hold.ident, ref)
        return self._planned(loop, hold.renew_key)

    def _planned(self, loop: _Loop, key: int) -> bool:
        if not loop.running:
            # The loop says itself that it runs. Were it said here, an interruption between this
            # and the start would leave a client that never renews anything again.
            now = self._rt.now()
            overdue = now - loop.started_at > NS_PER_S // 2
            loop.started_at = now if overdue else loop.started_at
            return overdue
        if key < loop.sleeps_until:
            loop.sleeps_until = key
            loop.signal.set()
        return False

    def _start(
        self,
        name: str,
        loop: _Loop,
        work: Callable[[_Loop, list[Ref]], Coroutine[Any, Any, None]],
    ) -> None:
        self._rt.spawn(name, self._turn(loop, work))

    async def _turn(
        self, loop: _Loop, work: Callable[[_Loop, list[Ref]], Coroutine[Any, Any, None]]
    ) -> None:
        rt, guard = self._rt, self.guard
        with guard:
            if loop.running:
                return  # started twice, because the first start took long
            loop.running = True
        idle_since = 0
        while not self._closed and loop in {self._renewals, self._losses}:
            with guard:
                now = rt.now()
                due = loop.timers.pop_due(now)
                upcoming = loop.timers.next_due()
                if due or upcoming is not None:
                    idle_since = 0
                elif not idle_since:
                    idle_since = now
                elif now - idle_since >= IDLE_S * NS_PER_S:
                    loop.running = False
                    loop.started_at = 0
                    return
                # Woken for a hold that is released already: keep to its time all the same. Looking
                # farther ahead would have the next hold, a little later, wake the loop again.
                planned = loop.sleeps_until if loop.sleeps_until > now else None
                target = upcoming or now + int(IDLE_S * NS_PER_S)
                loop.sleeps_until = target if planned is None else min(target, planned)
                pause = (loop.sleeps_until - now) / NS_PER_S
            if due:
                await work(loop, due)
            else:
                await rt.wait(loop.signal, pause)

    # Holds are looked up inside these methods, so that no loop variable keeps one alive while the
    # loop sleeps.

    async def _watch(self, loop: _Loop, due: list[Ref]) -> None:
        for ref in due:
            hold = ref()
            if hold is None or not hold.active:
                continue
            hold.overdue(self._rt.now())
            with self.guard:
                if hold.active:
                    self._plan_loss(hold, ref)

    async def _renew(self, loop: _Loop, due: list[Ref]) -> None:
        calls: list[Call[Any]] = []
        batch: list[tuple[Ref, int]] = []
        for ref in due:
            hold = ref()
            if hold is not None and (renewals := hold.renewals()):
                calls.extend(renewals)
                batch.append((ref, len(renewals)))
        hold = None
        if not batch:
            return
        sent = self._rt.now()
        answers: Sequence[Any]
        try:
            answers = await self._rt.fan_out(calls)
        except Exception as error:
            # Not an answer and not a failed exchange: a defect. It must not end all renewals.
            failed = NodeError(f"renewals could not be sent: {error!r}", sent=True)
            answers = [failed] * len(calls)
        first = 0
        for ref, count in batch:
            own, first = answers[first : first + count], first + count
            hold = ref()
            if hold is None:
                continue
            hold.renewed(sent, own)
            with self.guard:
                if hold.active:
                    self._plan_renewal(hold, ref)
            self.moved(hold)
