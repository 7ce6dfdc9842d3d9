"""Holds: what `acquire` gives. A hold owns its identity, so any thread or task may release it.

Guarantees    between the grant and its deadline nobody else was granted the lock (the assumptions
              are in docs/guarantees.md); from the deadline on the hold says that it is lost,
              whatever the network does; a lost hold never becomes held again; the fence never
              changes.
Costs         `remaining`, `ensure`, `lost`: no round trip. `extend`, `release`: one.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..core.compensate import compensate
from ..core.events import Lost as LostEvent
from ..core.events import Released, ReleaseFailed, RenewalFailed, Renewed
from ..core.lease import NS_PER_S, Seconds, seconds
from ..core.pinned import Pinned
from ..core.runtime import Scope, Signal, run
from ..core.script import Call
from ..errors import (
    HoldfastError,
    LockLost,
    LockLostWarning,
    NodeError,
    QuorumError,
    Unavailable,
    UsageError,
)
from .terms import Kit, Standing, Terms

HELD, RELEASING, RELEASED, LOST = range(4)
_idents = itertools.count(1)


class AsyncHold(Pinned):
    """A lock that is held, until it is released or lost."""

    __slots__ = (
        "__weakref__",
        "_deadline",
        "_end",
        "_epoch",
        "_face",
        "_granted_at",
        "_kit",
        "_owner",
        "_reason",
        "_release_sent",
        "_state",
        "_terms",
        "_watchers",
        "fence",
        "ident",
        "loss_key",
        "renew_at",
        "renew_key",
        "scope",
    )

    def __init__(
        self, kit: Kit, terms: Terms, owner: str, fence: int, sent: int, face: Callable[[Any], Any]
    ) -> None:
        self._kit = kit
        self._terms = terms
        self._face = face
        self._owner = owner
        self.fence: Final = fence
        self.ident = next(_idents)
        self.scope: Scope | None = None
        self._state = HELD
        self._reason = ""
        self._release_sent = False
        self._epoch = kit.rt.epoch
        self._granted_at = sent
        self._watchers: list[Signal] | None = None
        self._end = None if terms.max_hold_ns is None else sent + terms.max_hold_ns
        self._deadline = sent + terms.span_ns
        self.renew_at = sent + terms.pause_ns if terms.renew else None
        self.loss_key = self.renew_key = 0
        kit.keeper.add(self)

    # ── what a holder asks: no round trips ─────────────────────────────────────────────────────

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._terms.name

    @property
    def owner(self) -> str:
        """The owner id: random bits, host, process and label."""
        return self._owner

    @property
    def deadline(self) -> int:
        """When the hold ends by itself, in ns of the runtime's clock."""
        end = self._end
        return self._deadline if end is None or self._deadline < end else end

    @property
    def grain(self) -> int:
        """How much earlier than its deadline, in ns, the loss may be signalled."""
        return self._terms.grain

    @property
    def active(self) -> bool:
        """Whether it is held, as far as anybody has noticed."""
        return self._state == HELD

    def remaining(self) -> float:
        """Seconds for which the lock is certainly still held; 0.0 once it is lost or released.

        Counted on this machine's monotonic clock from before the request was sent, clock drift
        taken off. No round trip.
        """
        if self._state != HELD or self._epoch != self._kit.rt.epoch:
            return 0.0
        return max(0.0, (self.deadline - self._kit.rt.now()) / NS_PER_S)

    def ensure(self) -> None:
        """Raise `LockLost` unless the lock is still held. No round trip.

        Call it before each step that must not happen without the lock. It cannot help against a
        pause between the check and the step: give the resource the `fence` for that.
        """
        if self.is_lost():
            raise self._lost_error()
        if self._state != HELD:
            raise UsageError(f"{self.name!r}: this hold was released", name=self.name)

    def is_lost(self) -> bool:
        """Whether the lock was held and is not any more, without having been released."""
        if self._epoch != self._kit.rt.epoch:
            return True
        if self._state == HELD and self._kit.rt.now() >= self.deadline:
            self._lose(self._why_over())
        return self._state == LOST

    @property
    def lost(self) -> AsyncLost:
        """The loss as an event: `is_set()` and `await wait()`."""
        return AsyncLost(self)

    # ── extending and releasing ────────────────────────────────────────────────────────────────

    async def extend(self, lease: Seconds) -> None:
        """Have the lock for `lease` seconds from now on. Absolute, and never shortens.

        One round trip. Raises LockLost if the lock is gone, Unavailable if the server cannot
        answer: the hold then keeps what it had.
        """
        kit = self._kit
        lease_ms = kit.validity.checked_lease_ms(lease, most=kit.max_lease)
        self.ensure()
        for again in (True, False):  # once more after a lost reply: the script is absolute
            sent = kit.rt.now()
            answer = self._judge(sent, lease_ms, await self._ask_to_extend(lease_ms))
            kit.keeper.moved(self)
            if isinstance(answer, HoldfastError):
                if again and isinstance(answer, NodeError | QuorumError):
                    continue
                answer.name = self.name
                raise answer
            if not answer.mine:
                self._lose(answer.reason())
                raise self._lost_error()
            break
        self.ensure()

    async def _ask_to_extend(self, lease_ms: int) -> Sequence[Standing | HoldfastError]:
        (call,) = self._renew_calls(lease_ms, self._kit.timeout)
        try:
            return [await self._kit.rt.call(call)]
        except HoldfastError as error:
            return [error]

    def _judge(
        self, sent: int, lease_ms: int, answers: Sequence[Standing | HoldfastError]
    ) -> Standing | HoldfastError:
        """What the answers to a renewal amount to. One that succeeded counts from here on."""
        answer = answers[0]
        if isinstance(answer, Standing) and answer.mine:
            self._prolong(self._kit.validity.deadline(sent, lease_ms))
        return answer

    async def release(self) -> None:
        """Give the lock back, to the next waiter if there is one. Safe to repeat after any error.

        One round trip; finishes even if the caller is cancelled meanwhile. Raises LockLost if the
        lock was lost before, Unavailable if the server cannot be reached (the lock then frees
        itself when its lease ends; nothing renews it any more).
        """
        if self._state == RELEASED:
            return
        if self._epoch != self._kit.rt.epoch:
            raise UsageError(
                f"{self.name!r} is held by the process (or event loop) that acquired it; "
                "a forked child owns nothing",
                name=self.name,
            )
        lost = self.is_lost()
        with self._kit.keeper.guard:
            if self._state == HELD:
                self._state = RELEASING
        self._kit.keeper.forget(self)
        if lost:
            await self._sweep_up()
            raise self._lost_error()
        try:
            await self._give_back()
        except BaseException as error:
            if not isinstance(error, HoldfastError):
                # Cancelled, or Ctrl-C: the request may have left or not. Asking again is harmless.
                self._release_sent = True
                await compensate(self._kit.rt, error, self._give_back)
            self._kit.rt.unlisten(self._owner)
            raise

    async def _give_back(self) -> None:
        rt, terms = self._kit.rt, self._terms
        began = rt.now()
        while True:
            try:
                standing = await self._ask_to_release(self._kit.timeout)
                break
            except (NodeError, QuorumError) as error:
                self._release_sent = self._release_sent or error.sent
                if rt.now() - began >= self._kit.timeout * NS_PER_S / 2:
                    error.name = terms.name
                    raise
                await rt.wait(rt.signal(), rt.jitter(0.01, 0.05))
        # After a lost reply "not mine" means that the lost one had released it.
        if not standing.mine and not self._release_sent:
            self.scope = None  # the caller gets the exception: no need to cancel it as well
            self._state = HELD
            self._lose(standing.reason())
            raise self._lost_error()
        self._state = RELEASED
        watchers, self._watchers = self._watchers or [], None
        for signal in watchers:
            signal.set()
        if rt.wants(Released):
            held = (rt.now() - self._granted_at) / NS_PER_S
            rt.emit(Released(terms.name, self.owner, self.fence, held))

    async def _sweep_up(self) -> None:
        """Lost by our clock, but the key may still stand (grace, drift): free it, if it is ours."""
        try:
            await self._kit.rt.shield(self._sweep())
        except HoldfastError:
            pass  # the key ends by itself

    async def _sweep(self) -> None:
        await self._ask_to_release(min(1.0, self._kit.timeout))

    async def _leave(self, error: BaseException | None) -> None:
        """The end of a `with` block: release, and let the policy decide what a loss means."""
        if self._epoch != self._kit.rt.epoch:
            return  # a forked child runs out of its parent's block: it owns nothing
        interrupted = self.scope is not None and await self.scope.close(error)
        try:
            await self.release()
        except LockLost as lost:
            if error is not None and not interrupted:
                if not isinstance(error, LockLost):
                    error.add_note(f"holdfast: {lost}")
            elif self._terms.on_lost == "raise":
                raise lost from None
            elif self._terms.on_lost == "warn":
                warnings.warn(str(lost), LockLostWarning, stacklevel=4)
        except UsageError as failure:
            if error is None:
                raise
            error.add_note(f"holdfast: {failure}")
        except Unavailable as failure:
            # The body ran under the lock from start to end, and the lease frees it: no error.
            self._kit.rt.emit(ReleaseFailed(self.name, self.owner, str(failure)))
            if error is not None:
                error.add_note(f"holdfast: the release failed: {failure}")

    # ── what the keeper asks ───────────────────────────────────────────────────────────────────

    def renewals(self) -> Sequence[Call[Standing]]:
        """The calls that renew the lease; none if it shall not be renewed."""
        if self._state != HELD or (self._end is not None and self._kit.rt.now() >= self._end):
            return ()
        return self._renew_calls(self._terms.lease_ms, self._terms.attempt)

    def renewed(self, sent: int, answers: Sequence[Standing | HoldfastError]) -> None:
        """Take in the answers to a renewal. Errors are retried while the lease lasts."""
        rt = self._kit.rt
        if self._state != HELD:
            return
        answer = self._judge(sent, self._terms.lease_ms, answers)
        if isinstance(answer, UsageError):
            self._lose("replaced by another kind of value")
        elif isinstance(answer, HoldfastError):
            # An answer that never came proves nothing; what is known is kept, and asked again soon.
            self.renew_at = rt.now() + self._terms.pause_ns // 4
            if rt.wants(RenewalFailed):
                rt.emit(RenewalFailed(self.name, self.owner, str(answer), self.remaining()))
        elif not answer.mine:
            self._lose(answer.reason())
        else:
            self.renew_at = sent + self._terms.pause_ns
            if rt.wants(Renewed):
                rt.emit(Renewed(self.name, self.owner, self.remaining()))

    def overdue(self, now: int) -> None:
        """The keeper's timer: signal the loss if the deadline has not moved meanwhile."""
        if self._state == HELD and now >= self.deadline - self.grain:
            self._lose(self._why_over())

    def _prolong(self, deadline: int) -> None:
        """A renewal succeeded. It counts only if the hold was valid all along."""
        with self._kit.keeper.guard:
            if self._state == HELD and self._kit.rt.now() < self._deadline:
                self._deadline = max(self._deadline, deadline)
                return
        self.is_lost()

    def _why_over(self) -> str:
        ended = self._end is not None and self._kit.rt.now() >= self._end - self.grain
        return "max_hold reached" if ended else "expired"

    def _lose(self, reason: str) -> None:
        """HELD becomes LOST, once; then everybody is told."""
        with self._kit.keeper.guard:
            if self._state != HELD:
                return
            self._state = LOST
            self._reason = reason
            watchers, self._watchers = self._watchers or [], None
        rt, terms = self._kit.rt, self._terms
        for signal in watchers:
            signal.set()
        if self.scope is not None and terms.on_lost == "raise":
            self.scope.interrupt()
        rt.emit(LostEvent(terms.name, self.owner, self.fence, reason))
        if callable(terms.on_lost):
            try:
                terms.on_lost(self._face(self))
            except Exception as error:  # a callback's bug must not stop the keeper
                warnings.warn(f"on_lost callback of {terms.name!r} raised {error!r}", stacklevel=2)

    def _lost_error(self) -> LockLost:
        reason = self._reason or "held by another process"
        return LockLost(
            f"{self.name!r} was lost: {reason} (owner {self.owner}, fence {self.fence})",
            reason=reason,
            name=self.name,
        )

    def _watch(self, signal: Signal) -> None:
        with self._kit.keeper.guard:
            if self._state == HELD:
                self._watchers = [*(self._watchers or []), signal]
                return
        signal.set()

    # ── calls ──────────────────────────────────────────────────────────────────────────────────

    def _renew_calls(self, lease_ms: int, timeout: float) -> Sequence[Call[Standing]]:
        terms = self._terms
        args = (self._owner, str(lease_ms + terms.grace_ms), *terms.extra)
        return (Call(terms.renew_script, terms.keys[:2], args, timeout, acks=terms.acks),)

    async def _ask_to_release(self, timeout: float) -> Standing:
        terms = self._terms
        args = (self._owner, *terms.extra)
        return await self._kit.rt.call(
            Call(terms.release_script, terms.keys, args, timeout, tied=self._owner)
        )

    def __repr__(self) -> str:
        state = ("held", "releasing", "released", "lost")[self._state]
        return (
            f"<hold of {self.name!r}: {state}, fence {self.fence}, {self.remaining():.3f} s left>"
        )

    def __del__(self) -> None:
        # No I/O here: the keeper's weak reference is dead, so nothing renews, and the lease ends.
        if (
            getattr(self, "_state", RELEASED) == HELD
            and self._epoch == self._kit.rt.epoch
            and self._kit.rt.now() < self.deadline
        ):
            # A warning filter may keep whatever it is given; so no reference to the hold goes out,
            # and one that comes back to life all the same is not renewed.
            self._state = LOST
            self._reason = "dropped without release"
            warnings.warn(
                f"a hold of {self.name!r} was dropped without release(); "
                "the lock stays taken until its lease ends",
                ResourceWarning,
                stacklevel=2,
            )


class AsyncLost:
    """The loss of one hold, as an event."""

    __slots__ = ("_hold",)

    def __init__(self, hold: AsyncHold) -> None:
        self._hold = hold

    def is_set(self) -> bool:
        """Whether the hold is lost. Derived from the deadline, so it is never stale."""
        return self._hold.is_lost()

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the hold is lost (True), released, or `timeout` seconds are over (False)."""
        hold, rt = self._hold, self._hold._kit.rt
        limit = None if timeout is None else seconds(timeout, "timeout")
        ends = None if limit is None else rt.now() + int(limit * NS_PER_S)
        signal = rt.signal()
        hold._watch(signal)
        while not hold.is_lost() and hold._state == HELD:
            now = rt.now()
            if ends is not None and now >= ends:
                return False
            bound = hold.deadline if ends is None else min(ends, hold.deadline)
            await rt.wait(signal, min(1.0, (bound - now) / NS_PER_S))
        return hold.is_lost()


class Lost:
    """The loss of one hold, as an event."""

    __slots__ = ("_lost",)

    def __init__(self, lost: AsyncLost) -> None:
        self._lost = lost

    def is_set(self) -> bool:
        """Whether the hold is lost. Derived from the deadline, so it is never stale."""
        return self._lost.is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the hold is lost (True), released, or `timeout` seconds are over (False)."""
        return run(self._lost.wait(timeout))


class Hold(Pinned):
    """A lock that is held, until it is released or lost."""

    __slots__ = ("__weakref__", "_hold")

    def __init__(self, hold: AsyncHold) -> None:
        self._hold = hold

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._hold.name

    @property
    def fence(self) -> int:
        """An integer that grows with every grant of this name: give it to the resource."""
        return self._hold.fence

    @property
    def owner(self) -> str:
        """The owner id: random bits, host, process and label."""
        return self._hold.owner

    @property
    def lost(self) -> Lost:
        """The loss as an event: `is_set()` and `wait()`."""
        return Lost(self._hold.lost)

    def remaining(self) -> float:
        """Seconds for which the lock is certainly still held; 0.0 once it is lost or released.

        Counted on this machine's monotonic clock from before the request was sent, clock drift
        taken off. No round trip.
        """
        return self._hold.remaining()

    def is_lost(self) -> bool:
        """Whether the lock was held and is not any more, without having been released."""
        return self._hold.is_lost()

    def ensure(self) -> None:
        """Raise `LockLost` unless the lock is still held. No round trip.

        Call it before each step that must not happen without the lock. It cannot help against a
        pause between the check and the step: give the resource the `fence` for that.
        """
        self._hold.ensure()

    def extend(self, lease: Seconds) -> None:
        """Have the lock for `lease` seconds from now on. Absolute, and never shortens.

        One round trip. Raises LockLost if the lock is gone, Unavailable if the server cannot
        answer: the hold then keeps what it had.
        """
        run(self._hold.extend(lease))

    def release(self) -> None:
        """Give the lock back, to the next waiter if there is one. Safe to repeat after any error.

        One round trip; finishes even if the caller is cancelled meanwhile. Raises LockLost if the
        lock was lost before, Unavailable if the server cannot be reached (the lock then frees
        itself when its lease ends; nothing renews it any more).
        """
        run(self._hold.release())

    def __repr__(self) -> str:
        return repr(self._hold)
