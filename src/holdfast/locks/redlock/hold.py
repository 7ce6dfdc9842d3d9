"""What a majority vouches for: a hold over N nodes, each of which vouches until its own instant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...core.lease import milliseconds
from ...core.quorum import vouched_until
from ...core.script import Call
from ...errors import HoldfastError, UsageError
from ..hold import HELD, AsyncHold
from ..lock import FENCE_MS
from ..terms import Kit, Standing, Terms
from .node import GUARD_MS, RELEASE, RENEW
from .tally import Tally, Traces, is_denial, is_mine, is_unsent

if TYPE_CHECKING:
    from .lock import AsyncRedlock


class AsyncRedhold(AsyncHold):
    """A lock that a majority of the nodes vouches for, until it is released or lost."""

    __slots__ = ("_lock", "_traces", "_until")

    def __init__(
        self,
        lock: AsyncRedlock,
        owner: str,
        fence: int,
        sent: int,
        granted: Sequence[bool],
        traces: Traces,
    ) -> None:
        terms: Terms = lock._terms
        self._lock = lock
        self._traces = traces
        self._until = [sent + terms.span_ns if vouches else 0 for vouches in granted]
        super().__init__(lock._kit, terms, owner, fence, sent, lock._face)

    def _renew_calls(self, lease_ms: int, timeout: float) -> Sequence[Call[Any]]:
        kit, terms = self._kit, self._terms
        checked_life(kit, lease_ms, terms.grace_ms)
        args = (
            *(self._owner, str(FENCE_MS), str(self.fence), str(lease_ms + terms.grace_ms)),
            *(str(kit.quarantine_ms), str(GUARD_MS)),
        )
        timeout = min(timeout, self._lock._exchange_s)
        self._traces.begin(self.fence)
        # Not tied: numbers keep the order, and a connection that died must not be asked again.
        return [
            Call(RENEW, terms.keys, args, timeout, node=node, identified=True)
            for node in range(self._lock._nodes)
        ]

    async def _ask_to_extend(self, lease_ms: int) -> Sequence[Any]:
        calls = self._renew_calls(lease_ms, self._kit.timeout)
        return await self._kit.rt.fan_out(calls, Tally(len(calls), is_mine).add)

    def _judge(
        self, sent: int, lease_ms: int, answers: Sequence[object]
    ) -> Standing | HoldfastError:
        lock = self._lock
        self._traces.end(answers, is_unsent)
        found = [a for a in answers if isinstance(a, Standing)]
        denied = [standing for standing in found if not standing.mine]
        if len(denied) > lock._nodes - lock._quorum:
            return _best_known(denied)
        self._recount(self._kit.validity.deadline(sent, lease_ms), answers)
        if self._kit.rt.now() >= self._deadline and any(map(_vouched_not, found)):
            return _best_known(denied) if denied else Standing(False)
        self.is_lost()
        if sum(map(is_mine, answers)) >= lock._quorum:
            return Standing(True, self._owner)
        return lock._error(f"{self.name!r}: too few nodes vouch", answers, transient=True)

    def _recount(self, fresh: int, answers: Sequence[object]) -> None:
        """Until when a majority vouches now. It counts only if the hold was valid all along.

        Fewer than a majority count as well: every node vouches until its own instant. First come
        those that turned out not to vouch: if the rest were too few, somebody else may have held
        the lock meanwhile, and whoever vouches anew cannot mend that.
        """
        quorum, until = self._lock._quorum, self._until
        with self._kit.keeper.guard:
            now = self._kit.rt.now()
            if self._state != HELD or now >= self._deadline:
                return
            for node, answer in enumerate(answers):
                if _vouched_not(answer):
                    until[node] = 0
            if vouched_until(until, quorum) > now:
                for node, answer in enumerate(answers):
                    if is_mine(answer):
                        until[node] = max(until[node], fresh)
            self._deadline = vouched_until(until, quorum)

    async def _ask_to_release(self, timeout: float) -> Standing:
        lock = self._lock
        args = (self._owner, str(FENCE_MS), str(self.fence), self._kit.rt.inbox)
        calls = lock._calls(RELEASE, args, final=self._traces)
        # A node that fails decides nothing here: the others may yet say that they are free of us.
        decide = Tally(lock._nodes, is_mine, is_denial)
        answers = await self._kit.rt.fan_out(calls, decide.add)
        found = [a for a in answers if isinstance(a, Standing)]
        denied = [standing for standing in found if not standing.mine]
        if len(denied) > lock._nodes - lock._quorum:
            return _best_known(denied)
        if len(found) < lock._quorum:
            raise lock._error(f"{self.name!r} was not released", answers, transient=True)
        return Standing(True, self._owner)


def checked_life(kit: Kit, lease_ms: int, grace_ms: int) -> None:
    """A key must not outlive the quarantine of a node that forgot it."""
    longest_ms = milliseconds(kit.max_lease)
    if kit.quarantine_ms and lease_ms + grace_ms > longest_ms:
        raise UsageError(
            f"lease={lease_ms / 1000:g} and grace={grace_ms / 1000:g} together are longer than "
            f"max_lease={longest_ms / 1000:g}, for which a node that was restarted grants nothing: "
            "connect with a longer one"
        )


def _vouched_not(answer: object) -> bool:
    """Whether the node turned out to have given the lock up before it was asked."""
    return isinstance(answer, Standing) and (answer.anew or not answer.mine)


def _best_known(denied: Sequence[Standing]) -> Standing:
    """The one that says most of why the lock is lost."""
    return max(denied, key=lambda standing: (standing.forced, bool(standing.holder)))
