"""How votes are held: acquiring over N nodes, and what operators ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ...core.events import Waiting
from ...core.keys import GUARD, aux
from ...core.lease import NS_PER_S
from ...core.quorum import majority, vouched_until
from ...core.runtime import Signal
from ...core.script import Call, Script
from ...errors import HoldfastError, QuorumError, UsageError
from ..hold import AsyncHold
from ..info import LockInfo, Snapshot
from ..lock import FENCE_MS, AsyncLock, Busy
from ..terms import Kit, Standing
from .hold import AsyncRedhold, checked_life
from .node import (
    ACQUIRE,
    BEHIND,
    BOOTSTRAP,
    FORCE,
    GRANTED,
    GUARD_MS,
    INFO,
    LEAVE,
    MISMATCH,
    QUARANTINED,
    QUEUE_MS,
    RELEASE,
    RENEW,
    TAKEN,
    Vote,
)
from .tally import Tally, Traces, is_grant, is_mine, is_standing, is_unsent

MOST_PROPOSALS = 8

Answer = Vote | HoldfastError | None


class AsyncRedlock(AsyncLock):
    """A lock over several independent primaries. `hf.lock(...)` makes one."""

    _scripts: tuple[Script[Any], Script[Standing]] = (RENEW, RELEASE)

    def __init__(
        self, kit: Kit, name: str, *, acks: int | str | None = None, **options: Any
    ) -> None:
        if acks is not None:
            raise UsageError(
                f"acks={acks!r}: WAIT is for one primary with replicas; over several primaries a "
                "majority vouches for the lock"
            )
        super().__init__(kit, name, **options)
        checked_life(kit, self._terms.lease_ms, self._terms.grace_ms)
        self._nodes: Final = len(kit.rt.nodes)
        self._quorum: Final = majority(self._nodes)
        self._traces: dict[str, Traces] = {}
        # Small against the lease: what a silent node may cost is lost validity.
        self._exchange_s = min(kit.timeout, max(0.01, self._terms.span_ns / NS_PER_S / 20))

    @staticmethod
    def _keys(name: str) -> tuple[str, ...]:
        return name, aux(name, "fence"), aux(name, "queue"), GUARD

    # ── acquiring ──────────────────────────────────────────────────────────────────────────────

    async def _attempts(
        self, owner: str, began: int, wait: float | None, signal: Signal | None
    ) -> AsyncHold | Busy:
        """Hold votes until one is won or time is over."""
        rt = self._kit.rt
        ends = None if wait is None else began + int(wait * NS_PER_S)
        failing_since: int | None = None
        announced = False
        lost = 0
        sent = began
        traces = self._traces[owner] = Traces(self._nodes)
        while True:
            left = None if ends is None else max(0, ends - sent)
            waits = left != 0 and signal is not None
            fence, sent, answers = await self._vote(owner, began, traces, queue=waits)
            granted = [is_grant(answer) for answer in answers]
            now = rt.now()
            if sum(granted) >= self._quorum and now < sent + self._terms.span_ns:
                hold = AsyncRedhold(self, owner, fence, sent, granted, traces)
                del self._traces[owner]
                return hold
            took, lost = now - sent, lost + 1
            if waits and not all(map(_is_refusal, answers)):
                await self._give_back(owner, fence, traces, stay=True)
            error = self._unreachable(answers)
            if error is not None:
                failing_since = sent if failing_since is None else failing_since
                await self._outlast(error, failing_since, ends)
                sent = rt.now()
                continue
            failing_since = None
            busy, split = self._busy(answers)
            if not waits or signal is None:
                await rt.shield(self._withdraw(owner))
                return busy
            if not announced and rt.wants(Waiting):
                announced = True
                rt.emit(Waiting(self.name, owner, busy.position, busy.holder))
            if split:
                # Several wanted it at once and nobody won. Whoever is first next time has a chance
                # only if the others are late by more than a vote takes.
                window = max(2 * took / NS_PER_S, 0.002) * (1 << min(lost, 10))
                pause = rt.jitter(0.0, min(window, 0.5))
            else:
                lost = 0
                pause = busy.look_ms / 1000 * rt.jitter(1.0, 1.1)
            await self._pause(signal, rt.now() + int(pause * NS_PER_S), ends)
            sent = rt.now()

    async def _vote(
        self, owner: str, began: int, traces: Traces, *, queue: bool
    ) -> tuple[int, int, Sequence[Answer]]:
        """Propose a fence to all nodes; again, with a larger one, where that was the obstacle."""
        kit, rt, terms = self._kit, self._kit.rt, self._terms
        proposals = 0
        while True:
            proposals += 1
            sent = rt.now()
            fence = kit.ballots.propose(rt.wall() // 1000)
            args = (
                *(owner, str(FENCE_MS), str(fence), terms.life, str(QUEUE_MS) if queue else "0"),
                *(str((sent - began) // 1000), rt.inbox),
                *(str(kit.quarantine_ms), str(GUARD_MS)),
            )
            traces.begin(fence)
            answers = await rt.fan_out(
                self._calls(ACQUIRE, args, identified=True), Tally(self._nodes, is_grant).add
            )
            traces.end(answers, _leaves_no_place if queue else _is_refusal)
            behind = [a.number for a in answers if isinstance(a, Vote) and a.kind == BEHIND]
            if behind:
                kit.ballots.refused(max(behind), rt.wall() // 1000)
            # Those that granted this fence accept a larger one; those that refuse go on refusing.
            won = sum(map(is_grant, answers))
            settled = not behind or won >= self._quorum or won + len(behind) < self._quorum
            if settled or proposals == MOST_PROPOSALS:
                return fence, sent, answers

    def _calls(
        self,
        script: Script[Any],
        args: tuple[str, ...],
        *,
        final: Traces | None = None,
        identified: bool = False,
    ) -> list[Call[Any]]:
        keys, timeout = self._terms.keys, self._exchange_s
        return [
            Call(
                script,
                keys,
                args,
                timeout,
                node=node,
                tied=args[0],
                final=final is not None and final.may_be_on(node),
                identified=identified,
            )
            for node in range(self._nodes)
        ]

    def _busy(self, answers: Sequence[Answer]) -> tuple[Busy, bool]:
        """What a lost vote says: when to look again, who holds, and whether nobody does yet."""
        taken = [a for a in answers if isinstance(a, Vote) and a.kind == TAKEN]
        # When each node may be free by itself; a majority is, once the q-th of them is.
        free_in = sorted(map(_free_in, answers))[self._quorum - 1]
        holders = Counter(vote.holder for vote in taken) or Counter({"": 0})
        holder, count = holders.most_common(1)[0]
        position = min((vote.position for vote in taken), default=0)
        # Far back the times are spread, or all that queued together would look together.
        look = min(500 + 250 * position, int(self._kit.rt.jitter(37_500, 75_000)))
        # The first waiters look when the lock may have ended, one after the other.
        if position < 8:
            look = min(look, free_in + 1 + 25 * position)
        return Busy(look, position, holder), count <= self._nodes - self._quorum

    def _unreachable(self, answers: Sequence[Answer]) -> QuorumError | None:
        """The error to raise if too many nodes cannot vote at all; None if a majority can."""
        failed = [
            a
            for a in answers
            if isinstance(a, HoldfastError)
            or (isinstance(a, Vote) and a.kind in {QUARANTINED, MISMATCH})
        ]
        if len(failed) <= self._nodes - self._quorum:
            return None
        misused = [a for a in failed if isinstance(a, UsageError)]
        if len(misused) > self._nodes - self._quorum:
            raise misused[0]
        lasting = [a for a in failed if not _may_pass(a)]
        return self._error(
            f"{self.name!r} cannot be decided: {len(failed)} of {self._nodes} nodes cannot vote, "
            f"and {self._quorum} are needed",
            answers,
            transient=len(lasting) <= self._nodes - self._quorum,
        )

    def _error(self, message: str, answers: Sequence[object], *, transient: bool) -> QuorumError:
        votes = {
            node: "has not answered yet" if answer is None else str(answer)
            for node, answer in zip(self._kit.rt.nodes, answers, strict=True)
        }
        said = "; ".join(f"{node}: {vote}" for node, vote in votes.items())
        return QuorumError(
            f"{message} ({said})",
            votes=votes,
            sent=any(not _is_refusal(answer) for answer in answers),
            transient=transient,
            name=self.name,
        )

    async def _give_back(self, owner: str, fence: int, traces: Traces, *, stay: bool) -> None:
        """Release on every node what this owner may have gained there, also on silent ones.

        Whatever it asked for with `fence`, or a smaller one, has no effect any more where it comes
        later than this.
        """
        args = (owner, str(FENCE_MS), str(fence), self._kit.rt.inbox, "1" if stay else "0")
        # Who stays asks again, and is then followed by a last word.
        calls = self._calls(LEAVE, args, final=None if stay else traces)
        await self._kit.rt.fan_out(calls, Tally(self._nodes, is_standing).add)

    async def _withdraw(self, owner: str) -> None:
        traces = self._traces.pop(owner, None)
        if traces is None:
            traces = Traces(self._nodes, self._kit.ballots.latest, everywhere=True)
        await self._give_back(owner, traces.fence, traces, stay=False)

    # ── for people and for operators ───────────────────────────────────────────────────────────

    async def info(self) -> LockInfo:
        """Who holds the lock on a majority, for how long yet, and who waits; changes nothing.

        One round trip to every node. Raises QuorumError if a majority does not answer.
        """
        seen = await self._look()
        holder, on = _most_common_holder(seen)
        pttl = fence = 0
        if holder is not None and len(on) >= self._quorum:
            left = [s.pttl for s in on]
            pttl = -1 if min(left) < 0 else vouched_until(left, self._quorum)
            fence = max(s.fence for s in on)
        else:
            holder = None
        longest = max(seen, key=lambda s: s.waiting)
        fence = fence or max(s.fence for s in seen)
        return Snapshot(holder, pttl, fence, longest.waiting, longest.waiters).info(self.name)

    async def force_release(self) -> str | None:
        """Take the lock away from whoever holds it, for operators. Returns the owner id, or None.

        The first waiter is told. The old holder learns of it at its next renewal, and its fence is
        old with the next grant. Two round trips: one to see who it is on most nodes, one to end
        that owner and nobody else. Raises QuorumError if a majority does not answer.
        """
        holder, on = _most_common_holder(await self._look())
        if holder is None:
            return None
        fence = max(s.fence for s in on)
        answers = await self._kit.rt.fan_out(
            self._calls(FORCE, (holder, str(FENCE_MS), str(fence)))
        )
        found = [answer for answer in answers if isinstance(answer, Standing)]
        if len(found) < self._quorum:
            raise self._error(f"{self.name!r}: too few nodes answer", answers, transient=True)
        return holder if any(map(is_mine, found)) else None

    async def _look(self) -> list[Snapshot]:
        answers = await self._kit.rt.fan_out(self._calls(INFO, ("",)))
        seen = [answer for answer in answers if isinstance(answer, Snapshot)]
        if len(seen) < self._quorum:
            raise self._error(f"{self.name!r}: too few nodes answer", answers, transient=True)
        return seen


def _most_common_holder(seen: Sequence[Snapshot]) -> tuple[str | None, list[Snapshot]]:
    """Who has the key on most nodes, and what those say; None where nobody has it anywhere."""
    holders = Counter(s.holder for s in seen if s.holder is not None)
    if not holders:
        return None, []
    holder = holders.most_common(1)[0][0]
    return holder, [s for s in seen if s.holder == holder]


def _free_in(answer: object) -> int:
    """In how many ms this node may vote for us by itself."""
    if isinstance(answer, Vote) and answer.kind in {GRANTED, BEHIND}:
        return 0
    if isinstance(answer, Vote) and answer.number >= 0:
        return answer.number
    return 10**9


def _leaves_no_place(answer: object) -> bool:
    """Whether the node surely knows nothing of the owner: it is not in its queue either."""
    return _is_refusal(answer) and not (isinstance(answer, Vote) and answer.kind == TAKEN)


def _is_refusal(answer: object) -> bool:
    """Whether the node surely holds nothing for the owner that asked."""
    if isinstance(answer, Vote):
        return answer.kind in {TAKEN, QUARANTINED, MISMATCH}
    return is_unsent(answer)


def _may_pass(answer: object) -> bool:
    """Whether a node that cannot vote may be able to in a while."""
    if isinstance(answer, Vote):
        return answer.kind == QUARANTINED
    return bool(getattr(answer, "transient", False))


async def bootstrap(kit: Kit) -> dict[str, HoldfastError | None]:
    """Declare all nodes to be new: nothing was granted that they could have forgotten."""
    nodes = kit.rt.nodes
    if not kit.quarantine_ms:
        raise UsageError(
            f"{', '.join(nodes)}: only several primaries with their guard on are bootstrapped"
        )
    args = (str(kit.quarantine_ms), str(GUARD_MS))
    calls = [
        Call(BOOTSTRAP, (GUARD,), args, kit.timeout, node=node, identified=True)
        for node in range(len(nodes))
    ]
    answers = await kit.rt.fan_out(calls)
    failed = (answer if isinstance(answer, HoldfastError) else None for answer in answers)
    return dict(zip(nodes, failed, strict=True))
