"""Redlock: the same lock over N independent primaries, of which a majority decides.

Guarantees    mutual exclusion while a hold is valid, also when N - q nodes have died, answer
              nothing, or were restarted empty (the guard); a crashed holder costs its lease; fences
              grow with every grant, whatever the clocks do, as long as no node forgets and forgot
              ones are guarded. docs/redlock.md has the algorithm, its assumptions and its critics.
Not           first in, first out: waiters are told in order, but a newcomer may be quicker;
              safety when more than N - q nodes break their assumptions within one lease (fences).
Costs         acquire and release: one request to every node at once, and the time of the q-th
              quickest answer. A lost vote: the same again, to give the minority back.

Keys, on every node
              name             string  owner id; PX = lease + grace
              {name}:fence     string  largest fence accepted, and behind a space the owner whose
                                       hold was last released by force; PX 24 h from each grant
              {name}:queue     zset    waiting owners and their inboxes, by when they came (us);
                                       PX 2 min from each look
              holdfast:guard   string  run id of the server, until when it grants nothing (ms), for
                                       how long a node that forgot grants nothing; PX one year
Channel       holdfast:inbox:<client>  the owner id of the waiter that shall look now
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ..core.events import Waiting
from ..core.keys import GUARD, aux
from ..core.lease import NS_PER_S
from ..core.quorum import majority, vouched_until
from ..core.runtime import Signal
from ..core.script import Call, Script, text
from ..errors import HoldfastError, QuorumError, UsageError
from .hold import HELD, AsyncHold
from .lock import FENCE_MS, INFO, AsyncLock, Busy, LockInfo, Snapshot, _standing
from .terms import Kit, Standing, Terms

GUARD_MS = 365 * 24 * 3600 * 1000
QUEUE_MS = 120 * 1000
MOST_PROPOSALS = 8

_NAMES = """
local lock, fence, queue, guard = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner = ARGV[1]
"""

# ARGV from the end: run id, guard lifetime, quarantine (0: do not ask).
_GUARD = """
local run_id, guard_ms = ARGV[#ARGV], tonumber(ARGV[#ARGV - 1])
local quarantine = tonumber(ARGV[#ARGV - 2])

-- nil where this node may grant; else why not, and for how many ms. A server that is not the one
-- which wrote the guard (or lost it: flush, eviction) may have forgotten grants: it makes none
-- until the last of them is over. The clock is the node's own, as it is for leases.
local function refusal()
  if quarantine == 0 then return nil end
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local run, free_at, agreed =
    string.match(redis.call('GET', guard) or '', '^(%S+) (%d+) (%d+)$')
  agreed = tonumber(agreed) or quarantine
  if run ~= run_id then
    local longest = math.max(agreed, quarantine)
    redis.call('SET', guard,
      string.format('%s %.0f %.0f', run_id, now + longest, agreed), 'PX', guard_ms)
    return 3, longest
  end
  if agreed ~= quarantine then return 4, agreed end
  if now <= tonumber(free_at) then return 3, tonumber(free_at) - now + 1 end
  if redis.call('PTTL', guard) < guard_ms / 2 then redis.call('PEXPIRE', guard, guard_ms) end
  return nil
end
"""

_FENCE = """
local function accepted()
  local number, forced = string.match(redis.call('GET', fence) or '', '^(%d+)(.*)$')
  return tonumber(number) or 0, forced or ''
end
"""

# Tell whoever came first that the lock may be free. An inbox that nobody reads has died with its
# process, so the next one is told. Who is told leaves the queue, and is back with its next look.
_ANNOUNCE = """
local function announce()
  for _ = 1, 100 do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first then return end
    redis.call('ZREM', queue, first)
    local who, inbox = string.match(first, '^([^%c]*)%c(.*)$')
    local heard = redis.pcall('PUBLISH', inbox, who)
    if type(heard) ~= 'number' or heard > 0 then return end
  end
end
"""

GRANTED, TAKEN, BEHIND, QUARANTINED, MISMATCH = 1, 0, 2, 3, 4


class Vote(msgspec.Struct, frozen=True, gc=False):
    """A node's answer. `number`: ms until the key ends, the fence accepted, ms of quarantine."""

    kind: int
    number: int = 0
    position: int = 0
    holder: str = ""

    def __str__(self) -> str:
        if self.kind == GRANTED:
            return "granted"
        if self.kind == TAKEN:
            return f"taken by {self.holder}"
        if self.kind == BEHIND:
            return f"has accepted the larger fence {self.number}"
        if self.kind == QUARANTINED:
            return (
                f"grants nothing for {self.number / 1000:g} s more: it is new, or was restarted or "
                "flushed and may have forgotten locks (`holdfast bootstrap` declares a new "
                "deployment clean)"
            )
        return (
            f"was declared with max_lease + clock_step = {self.number / 1000:g} s: connect with "
            "the same (or, when no lock is held, `holdfast bootstrap` with the new one)"
        )


def _vote(reply: Any) -> Vote:
    kind, number, position, holder = reply
    return Vote(kind, int(number), int(position), text(holder))


# ARGV: owner, fence proposed, key lifetime ms, patience ms (0: do not queue), us waited so far,
# inbox, fence lifetime, quarantine, guard lifetime, run id
# -> {1, 0, 0, ''} granted; {0, key ends in ms, position, holder}; {2, fence accepted, 0, ''};
#    {3, quarantine ms, 0, ''}; {4, quarantine ms agreed, 0, ''}
ACQUIRE: Final = Script(
    "redlock.acquire",
    _NAMES
    + _GUARD
    + _FENCE
    + """
local proposed, life, patience, inbox = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[6]
local holder = redis.call('GET', lock)
local me = owner .. string.char(10) .. inbox
if holder and holder ~= owner then
  if patience <= 0 then return {0, redis.call('PTTL', lock), 0, holder} end
  local clock = redis.call('TIME')
  redis.call('ZADD', queue,
    string.format('%.0f', clock[1] * 1000000 + clock[2] - tonumber(ARGV[5])), me)
  if redis.call('PTTL', queue) < patience then redis.call('PEXPIRE', queue, patience) end
  return {0, redis.call('PTTL', lock), redis.call('ZRANK', queue, me), holder}
end
local largest, forced = accepted()
if holder then
  -- Mine already: an earlier reply was lost, or an earlier vote. A larger fence is accepted anew.
  if proposed < largest then return {2, string.format('%.0f', largest), 0, ''} end
else
  local why, ms = refusal()
  if why then return {why, ms, 0, ''} end
  if proposed <= largest then return {2, string.format('%.0f', largest), 0, ''} end
end
redis.call('SET', fence, ARGV[2] .. forced, 'PX', ARGV[7])
redis.call('SET', lock, owner, 'PX', life)
redis.call('ZREM', queue, me)
return {1, 0, 0, ''}
""",
    _vote,
)


def _renewed(reply: Any) -> Standing | Vote:
    return Vote(QUARANTINED, int(reply[1])) if reply[0] == QUARANTINED else _standing(reply)


# ARGV: owner, key lifetime ms, fence, fence lifetime, quarantine, guard lifetime, run id
# -> {1 if mine (again), holder, 1 if forced}, or {3, quarantine ms, 0}: it may have forgotten me.
# A node that has no key joins, as if it had been asked when the lock was acquired.
RENEW: Final = Script(
    "redlock.renew",
    _NAMES
    + _GUARD
    + _FENCE
    + """
local life, mine, fence_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local holder = redis.call('GET', lock)
if holder == owner then
  if redis.call('PTTL', lock) < life then redis.call('PEXPIRE', lock, life) end
  if redis.call('PTTL', fence) < fence_ms / 2 then redis.call('PEXPIRE', fence, fence_ms) end
  return {1, owner, 0}
end
local largest, forced = accepted()
local by_force = string.sub(forced, 2) == owner
if holder or by_force then return {0, holder or '', by_force and 1 or 0} end
-- Somebody with a larger fence has been here since: this node must not vouch for me any more.
if mine < largest then return {0, '', 0} end
local why, ms = refusal()
if why then return {3, ms, 0} end
redis.call('SET', fence, ARGV[3] .. forced, 'PX', fence_ms)
redis.call('SET', lock, owner, 'PX', ARGV[2])
return {1, owner, 0}
""",
    _renewed,
)

# ARGV: owner, inbox -> {1 if it was mine, holder, 1 if forced}
RELEASE: Final = Script(
    "redlock.release",
    _NAMES
    + _FENCE
    + _ANNOUNCE
    + """
redis.call('ZREM', queue, owner .. string.char(10) .. ARGV[2])
local holder = redis.call('GET', lock)
if holder ~= owner then
  local _, forced = accepted()
  return {0, holder or '', string.sub(forced, 2) == owner and 1 or 0}
end
redis.call('DEL', lock)
announce()
return {1, owner, 0}
""",
    _standing,
    whole=True,  # it may be delivered when nobody listens for a NOSCRIPT any more
)

# ARGV: owner, inbox, 1 to stay in the queue -> {1 if it was mine, holder, 0}. What a lost vote had
# gained is given back silently: the others that lost retry by themselves, at random times. Who goes
# for good may have been told already, and passes that on.
LEAVE: Final = Script(
    "redlock.leave",
    _NAMES
    + _ANNOUNCE
    + """
local stays = ARGV[3] == '1'
if not stays then redis.call('ZREM', queue, owner .. string.char(10) .. ARGV[2]) end
local holder = redis.call('GET', lock)
if holder == owner then redis.call('DEL', lock) end
if not stays and (not holder or holder == owner) then announce() end
return {holder == owner and 1 or 0, holder or '', 0}
""",
    _standing,
    whole=True,
)

# ARGV: '', fence lifetime -> {1 if somebody held it, who, 0}
FORCE: Final = Script(
    "redlock.force",
    _NAMES
    + _FENCE
    + _ANNOUNCE
    + """
local holder = redis.call('GET', lock)
if not holder then return {0, '', 0} end
local largest = accepted()
redis.call('DEL', lock)
redis.call('SET', fence, string.format('%.0f', largest) .. ' ' .. holder, 'PX', ARGV[2])
announce()
return {1, holder, 0}
""",
    _standing,
)

# KEYS: guard. ARGV: quarantine, guard lifetime, run id -> the guard as it was, or ''
BOOTSTRAP: Final = Script(
    "redlock.bootstrap",
    """
local before = redis.call('GET', KEYS[1]) or ''
redis.call('SET', KEYS[1], ARGV[3] .. ' 0 ' .. ARGV[1], 'PX', ARGV[2])
return before
""",
    text,
)


def _is_grant(answer: object) -> bool:
    return isinstance(answer, Vote) and answer.kind == GRANTED


def _is_mine(answer: object) -> bool:
    return isinstance(answer, Standing) and answer.mine


def _is_denial(answer: object) -> bool:
    return isinstance(answer, Standing) and not answer.mine


def _is_standing(answer: object) -> bool:
    return isinstance(answer, Standing)


class Tally:
    """Counts answers until they decide: a majority is good, or so many are bad that none can be."""

    __slots__ = ("_bad", "_good", "_is_bad", "_is_good", "_quorum", "_rest")

    def __init__(
        self,
        nodes: int,
        is_good: Callable[[object], bool],
        is_bad: Callable[[object], bool] = lambda _: True,
    ) -> None:
        self._quorum = majority(nodes)
        self._rest = nodes - self._quorum
        self._is_good, self._is_bad = is_good, is_bad
        self._good = self._bad = 0

    def add(self, answer: object) -> bool:
        """Count one answer. True once it is decided."""
        if self._is_good(answer):
            self._good += 1
        elif self._is_bad(answer):
            self._bad += 1
        return self._good >= self._quorum or self._bad > self._rest


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
        self._nodes: Final = len(kit.rt.nodes)
        self._quorum: Final = majority(self._nodes)
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
        while True:
            left = None if ends is None else max(0, ends - sent)
            waits = left != 0 and signal is not None
            fence, sent, answers = await self._vote(owner, began, queue=waits)
            granted = [_is_grant(answer) for answer in answers]
            now = rt.now()
            if sum(granted) >= self._quorum and now < sent + self._terms.span_ns:
                return AsyncRedhold(self, owner, fence, sent, granted)
            took, lost = now - sent, lost + 1
            error = self._unreachable(answers)
            if error is not None:
                failing_since = sent if failing_since is None else failing_since
                if any(granted):
                    await self._give_back(owner, stay=True)
                await self._outlast(error, failing_since, ends)
                sent = rt.now()
                continue
            failing_since = None
            busy, split = self._busy(answers, owner)
            if not waits or signal is None:
                await rt.shield(self._withdraw(owner))
                return busy
            if any(answer is None or not _is_refusal(answer) for answer in answers):
                await self._give_back(owner, stay=True)
            if not announced and rt.wants(Waiting):
                announced = True
                rt.emit(Waiting(self.name, owner, busy.position, busy.holder))
            if split:
                # Several wanted it at once and nobody won. Whoever is first next time has a chance
                # only if the others are late by more than a vote takes.
                window = max(2 * took / NS_PER_S, 0.002) * (1 << min(lost, 7))
                pause = rt.jitter(0.0, min(window, 0.5))
            else:
                lost = 0
                pause = busy.look_ms / 1000 * rt.jitter(1.0, 1.1)
            await self._pause(signal, rt.now() + int(pause * NS_PER_S), ends)
            sent = rt.now()

    async def _vote(
        self, owner: str, began: int, *, queue: bool
    ) -> tuple[int, int, Sequence[Answer]]:
        """Propose a fence to all nodes; again, with a larger one, where that was the obstacle."""
        kit, rt, terms = self._kit, self._kit.rt, self._terms
        for _ in range(MOST_PROPOSALS):
            sent = rt.now()
            fence = kit.ballots.propose(rt.wall() // 1000)
            args = (
                *(owner, str(fence), terms.life, str(QUEUE_MS) if queue else "0"),
                *(str((sent - began) // 1000), rt.inbox, str(FENCE_MS)),
                *(str(kit.quarantine_ms), str(GUARD_MS)),
            )
            answers = await rt.fan_out(
                self._calls(ACQUIRE, args, identified=True), Tally(self._nodes, _is_grant).add
            )
            behind = [a.number for a in answers if isinstance(a, Vote) and a.kind == BEHIND]
            if behind:
                kit.ballots.refused(max(behind), rt.wall() // 1000)
            # Those that granted this fence accept a larger one; those that refuse go on refusing.
            won = sum(map(_is_grant, answers))
            if not behind or won >= self._quorum or won + len(behind) < self._quorum:
                break
        return fence, sent, answers

    def _calls(
        self,
        script: Script[Any],
        args: tuple[str, ...],
        *,
        final: bool = False,
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
                final=final,
                identified=identified,
            )
            for node in range(self._nodes)
        ]

    def _busy(self, answers: Sequence[Answer], owner: str) -> tuple[Busy, bool]:
        """What a lost vote says: when to look again, who holds, and whether nobody does yet."""
        taken = [a for a in answers if isinstance(a, Vote) and a.kind == TAKEN]
        # When each node may be free by itself; a majority is, once the q-th of them is.
        free_in = sorted(map(_free_in, answers))[self._quorum - 1]
        holders = Counter(vote.holder for vote in taken) or Counter({owner: 0})
        holder, count = holders.most_common(1)[0]
        position = min((vote.position for vote in taken), default=0)
        look = min(500 + 250 * position, 50_000)
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

    async def _give_back(self, owner: str, *, stay: bool) -> Sequence[Any]:
        """Release on every node what this owner may have gained there, also on silent ones."""
        args = (owner, self._kit.rt.inbox, "1" if stay else "0")
        calls = self._calls(LEAVE, args, final=not stay)
        return await self._kit.rt.fan_out(calls, Tally(self._nodes, _is_standing).add)

    async def _withdraw(self, owner: str) -> None:
        await self._give_back(owner, stay=False)

    # ── for people and for operators ───────────────────────────────────────────────────────────

    async def info(self) -> LockInfo:
        """Who holds the lock on a majority, for how long yet, and who waits; changes nothing.

        One round trip to every node. Raises QuorumError if a majority does not answer.
        """
        answers = await self._kit.rt.fan_out(self._calls(INFO, ("",)))
        seen = [answer for answer in answers if isinstance(answer, Snapshot)]
        if len(seen) < self._quorum:
            raise self._error(f"{self.name!r}: too few nodes answer", answers, transient=True)
        holder: str | None = None
        pttl = 0
        for candidate, count in Counter(s.holder for s in seen).most_common(1):
            if candidate is not None and count >= self._quorum:
                holder = candidate
                left = [s.pttl for s in seen if s.holder == candidate]
                pttl = -1 if min(left) < 0 else vouched_until(left, self._quorum)
        longest = max(seen, key=lambda s: s.waiting)
        waiters = tuple(who.partition("\n")[0] for who in longest.waiters)
        fence = max(s.fence for s in seen)
        return Snapshot(holder, pttl, fence, longest.waiting, waiters).info(self.name)

    async def force_release(self) -> str | None:
        """Take the lock away from whoever holds it, for operators. Returns the owner id, or None.

        The first waiter is told. The old holder learns of it at its next renewal, and its fence is
        old with the next grant. One round trip; raises QuorumError if a majority does not answer.
        """
        answers = await self._kit.rt.fan_out(self._calls(FORCE, ("", str(FENCE_MS))))
        found = [answer for answer in answers if isinstance(answer, Standing)]
        if len(found) < self._quorum:
            raise self._error(f"{self.name!r}: too few nodes answer", answers, transient=True)
        holders = Counter(standing.holder for standing in found if standing.mine)
        return holders.most_common(1)[0][0] if holders else None


def _free_in(answer: object) -> int:
    """In how many ms this node may vote for us by itself."""
    if isinstance(answer, Vote) and answer.kind in {GRANTED, BEHIND}:
        return 0
    if isinstance(answer, Vote) and answer.number >= 0:
        return answer.number
    return 10**9


def _is_refusal(answer: object) -> bool:
    """Whether the node surely holds nothing for the owner that asked."""
    if isinstance(answer, Vote):
        return answer.kind in {TAKEN, QUARANTINED, MISMATCH}
    return isinstance(answer, HoldfastError) and not getattr(answer, "sent", False)


def _may_pass(answer: object) -> bool:
    """Whether a node that cannot vote may be able to in a while."""
    if isinstance(answer, Vote):
        return answer.kind == QUARANTINED
    return bool(getattr(answer, "transient", False))


class AsyncRedhold(AsyncHold):
    """A lock that a majority of the nodes vouches for, until it is released or lost."""

    __slots__ = ("_lock", "_until")

    def __init__(
        self, lock: AsyncRedlock, owner: str, fence: int, sent: int, granted: Sequence[bool]
    ) -> None:
        terms: Terms = lock._terms
        self._lock = lock
        self._until = [sent + terms.span_ns if vouches else 0 for vouches in granted]
        super().__init__(lock._kit, terms, owner, fence, sent, lock._face)

    def _renew_calls(self, lease_ms: int, timeout: float) -> Sequence[Call[Any]]:
        kit, terms = self._kit, self._terms
        args = (
            *(self._owner, str(lease_ms + terms.grace_ms), str(self.fence), str(FENCE_MS)),
            *(str(kit.quarantine_ms), str(GUARD_MS)),
        )
        timeout = min(timeout, self._lock._exchange_s)
        return [
            Call(RENEW, terms.keys, args, timeout, node=node, tied=self._owner, identified=True)
            for node in range(self._lock._nodes)
        ]

    async def _ask_to_extend(self, lease_ms: int) -> Sequence[Any]:
        calls = self._renew_calls(lease_ms, self._kit.timeout)
        return await self._kit.rt.fan_out(calls, Tally(len(calls), _is_mine).add)

    def _judge(
        self, sent: int, lease_ms: int, answers: Sequence[object]
    ) -> Standing | HoldfastError:
        lock = self._lock
        self._recount(self._kit.validity.deadline(sent, lease_ms), answers)
        denied = [a for a in answers if isinstance(a, Standing) and not a.mine]
        if sum(map(_is_mine, answers)) >= lock._quorum:
            return Standing(True, self._owner)
        if len(denied) > lock._nodes - lock._quorum:
            return max(denied, key=lambda standing: (standing.forced, bool(standing.holder)))
        words = [
            "has the lock" if _is_mine(a) else (a.reason() if isinstance(a, Standing) else a)
            for a in answers
        ]
        return lock._error(f"{self.name!r}: too few nodes vouch", words, transient=True)

    def _recount(self, fresh: int, answers: Sequence[object]) -> None:
        """Until when a majority vouches now. It counts only if the hold was valid all along.

        Fewer than a majority count as well: every node vouches until its own instant.
        """
        with self._kit.keeper.guard:
            if self._state == HELD and self._kit.rt.now() < self._deadline:
                for node, answer in enumerate(answers):
                    if _is_mine(answer):
                        self._until[node] = max(self._until[node], fresh)
                    elif _is_denial(answer):
                        self._until[node] = 0  # it may have granted to somebody else
                self._deadline = vouched_until(self._until, self._lock._quorum)
        self.is_lost()

    async def _ask_to_release(self, timeout: float) -> Standing:
        lock = self._lock
        calls = lock._calls(RELEASE, (self._owner, self._kit.rt.inbox), final=True)
        # A node that fails decides nothing here: the others may yet say that they are free of us.
        decide = Tally(lock._nodes, _is_mine, _is_denial)
        answers = await self._kit.rt.fan_out(calls, decide.add)
        found = [a for a in answers if isinstance(a, Standing)]
        denied = [standing for standing in found if not standing.mine]
        if len(denied) > lock._nodes - lock._quorum:
            return max(denied, key=lambda standing: (standing.forced, bool(standing.holder)))
        if len(found) < lock._quorum:
            raise lock._error(f"{self.name!r} was not released", answers, transient=True)
        return Standing(True, self._owner)


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
