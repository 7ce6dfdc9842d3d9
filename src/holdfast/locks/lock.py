"""Lock: one holder at a time on one primary; fair, renewed, fenced.

Guarantees    mutual exclusion while a hold is valid (docs/guarantees.md names the assumptions);
              waiters are served in the order in which they came; a waiter that died costs one
              claim window, and so do all those of a killed process together; whoever is next is
              told when the lock may come free, so a crashed holder costs its lease (plus grace),
              not somebody's next look; fences grow with every grant of the name, across FLUSHALL,
              eviction and failover as long as clocks do not go back.
Not           safety after a failover that lost the write (use fences, or several primaries);
              reentrancy: a second acquire by the same flow waits for itself.
Costs         uncontended: 1 round trip to acquire, 1 to release. Waiting: 1 more when woken, and
              a look now and then (the head of the queue every 0.5 s, others ever more rarely, all
              waiters of one lock together at most about 40 a second). Renewal: batched.

Keys          name             string  owner id; PX = lease + grace, or the claim window
              {name}:fence     string  largest fence granted, and behind a space the owner whose
                                       hold was last released by force; PX 24 h from each grant
              {name}:queue     zset    waiting owners by ticket; PX: until the last of them would be
                                       taken for dead
              {name}:waiters   hash    w<owner>: deadline, last seen (server ms), key lifetime,
                                       inbox, next look; claim: who must claim its reservation;
                                       !<inbox>: when one of it failed to. PX like the queue
Channel       holdfast:inbox:<client>  the owner id of the waiter that shall look now; with a line
                                       of digits behind it: that shall look in so many ms
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from ..core.compensate import compensate
from ..core.events import Acquiring, Granted, Refused, Waiting
from ..core.keys import aux, checked_name
from ..core.lease import NS_PER_MS, NS_PER_S, Seconds
from ..core.pinned import Pinned
from ..core.runtime import Signal, run
from ..core.script import Call, Script, text
from ..errors import LockLost, LockTimeout, NodeError, QuorumError, UsageError
from .hold import AsyncHold, Hold
from .info import INFO, LockInfo
from .terms import (
    UNSET,
    Kit,
    OnLost,
    Standing,
    Terms,
    Unset,
    Wait,
    checked_label,
    checked_wait,
)

P = ParamSpec("P")
R = TypeVar("R")

CLAIM_MS = 2000
FENCE_MS = 24 * 3600 * 1000
FOREVER_MS = 10**12
OUTAGE_NS = 5 * NS_PER_S

# Shared by the scripts below. Every script ends with ARGV: ..., claim window, fence lifetime. Each
# answers the common case first, and defines what it needs for the others only then: a script is
# built anew at each run.
_NAMES = """
local lock, fence, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, claim_ms, fence_ms = ARGV[1], ARGV[#ARGV - 1], ARGV[#ARGV]
"""

_KEEP = """
-- Keys live as long as the longest life asked for; nothing shortens them.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, string.format('%.0f', ms)) end
end
"""

_GRANT = """
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local now = math.floor(us / 1000)

-- Microseconds as the floor: fences grow even when the stored one was lost. The fence is written
-- before it is known to be larger: nearly always it is, and that saves a read.
local function grant(who, ms)
  local new = string.format('%.0f', us)
  local old = redis.call('SET', fence, new, 'PX', fence_ms, 'GET')
  if old and (#old ~= #new or old >= new) then
    local stored, forced = string.match(old, '^(%d+)(.*)$')
    new = string.format('%.0f', math.max((tonumber(stored) or 0) + 1, us))
    redis.call('SET', fence, new .. (forced or ''), 'PX', fence_ms)
  end
  redis.call('SET', lock, who, 'PX', ms)
  return new
end
"""

_QUEUE = (
    _KEEP
    + """
local function forget(who)
  redis.call('ZREM', queue, who)
  redis.call('HDEL', waiters, 'w' .. who)
end

-- A waiter's record: until when it counts, when it was last heard of, how long its key would live,
-- its inbox, and when it looks again by itself.
local function read(record)
  return string.match(record or '', '^(%d+) (%d+) (%d+) (%S+) (%d+)')
end

-- The first waiter that is alive. A waiter is dead when its deadline is over, or when another of
-- the same inbox let its reservation lapse and this one has not been heard of since: a killed
-- process costs one claim window, not one for each of its waiters.
local function next_waiter()
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then return nil end
    local deadline, seen, life, inbox = read(redis.call('HGET', waiters, 'w' .. head))
    if deadline and tonumber(deadline) > now then
      local lapsed = redis.call('HGET', waiters, '!' .. inbox)
      if tonumber(seen) > (tonumber(lapsed or '0') or 0) then return head, inbox, life end
    end
    forget(head)
  end
end

-- Tell whoever is next when the lock may be free although nobody released it. Somebody of another
-- process, if there is one at the head or at the tail: the process that may crash takes its own
-- waiters with it. Nothing is sent to one that will look by itself before.
local function alert(inbox, ms)
  local next, to, looks
  for _, range in ipairs({{0, 7}, {-8, -1}}) do
    for _, who in ipairs(redis.call('ZRANGE', queue, range[1], range[2])) do
      local _, _, _, where, at = read(redis.call('HGET', waiters, 'w' .. who))
      if where and (not next or where ~= inbox) then next, to, looks = who, where, at end
      if where and where ~= inbox then break end
    end
    if to ~= inbox then break end
  end
  if next and tonumber(looks) > now + ms then
    redis.pcall('PUBLISH', to, next .. string.char(10) .. string.format('%.0f', ms + 1))
  end
end

-- Hand the lock to a waiter: it is taken in its name, and lapses if it does not come for it. The
-- message is a hint. pcall: a user without the right to publish must not stop half-way.
local function reserve(head, inbox, life)
  forget(head)
  grant(head, claim_ms)
  redis.call('HSET', waiters, 'claim', string.format('%.0f', now) .. ' ' .. inbox .. ' ' .. head)
  keep(waiters, tonumber(claim_ms) * 10)
  redis.pcall('PUBLISH', inbox, head)
  alert(inbox, math.min(tonumber(claim_ms), tonumber(life)))
end

local function pass_on()
  local head, inbox, life = next_waiter()
  if head then reserve(head, inbox, life) else redis.call('DEL', lock) end
end
"""
)


class Busy(msgspec.Struct, frozen=True):
    """Not granted: how long until a look is worth while, the place in the queue, who holds."""

    look_ms: int
    position: int
    holder: str


def _answer(reply: Any) -> int | Busy:
    if reply[0] == 1:
        return int(reply[1])
    return Busy(int(reply[1]), int(reply[2]), text(reply[3]))


def _standing(reply: Any) -> Standing:
    return Standing(reply[0] == 1, text(reply[1]), reply[2] == 1)


# ARGV: owner, key lifetime ms, patience ms (0: try, or give up), inbox, claim, fence lifetime
# -> {1, fence} or {0, look again in ms, position, holder}
ACQUIRE: Final = Script(
    "lock.acquire",
    _NAMES
    + _GRANT
    + """
local life, patience, inbox = ARGV[2], tonumber(ARGV[3]), ARGV[4]
if redis.call('EXISTS', lock, queue, waiters) == 0 then return {1, grant(owner, life)} end
local holder = redis.call('GET', lock)
"""
    + _QUEUE
    + """
if holder == owner then
  local claim = redis.call('HGET', waiters, 'claim')
  if claim and string.match(claim, '^%d+ %S+ (.*)$') == owner then
    -- Reserved for me: the real lease begins, even where the claim window was longer.
    redis.call('HDEL', waiters, 'claim')
    redis.call('PEXPIRE', lock, life)
  else
    keep(lock, tonumber(life))  -- the reply to an earlier grant was lost, or this one is late
  end
  local mine = string.match(redis.call('GET', fence) or '', '^%d+')
  return {1, mine or grant(owner, life)}
end
if not holder then
  local claim = redis.call('HGET', waiters, 'claim')
  if claim then  -- the lock is free, so whoever should have claimed it did not
    local since, where, who = string.match(claim, '^(%d+) (%S+) (.*)$')
    if who and who ~= owner then redis.call('HSET', waiters, '!' .. where, since) end
    redis.call('HDEL', waiters, 'claim')
  end
  local head, inbox_of_head, life_of_head = next_waiter()
  if head and head ~= owner then
    reserve(head, inbox_of_head, life_of_head)
    holder = head
  end
  if not holder then
    if head then
      forget(owner)
      alert(inbox, tonumber(life))
    end
    return {1, grant(owner, life)}
  end
end
if patience <= 0 then
  forget(owner)
  return {0, 0, 0, holder}
end
if not redis.call('ZSCORE', queue, owner) then
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  redis.call('ZADD', queue, string.format('%.0f', (tonumber(last[2] or '0') or 0) + 1), owner)
end
local position, length = redis.call('ZRANK', queue, owner), redis.call('ZCARD', queue)
-- When to look again without being called. The head looks when the lock may have expired, and
-- twice a second, for holders that announce nothing; the others more rarely the farther back, so
-- that a thousand waiters together look about 40 times a second. Whoever becomes the next is told.
local look = 500 + 250 * position
-- Far back the times are spread, or all that queued together would look together.
local most = math.max(50000, 75 * length) * (0.5 + 0.5 * position / length)
if look > most then look = math.floor(most) end
if position < 8 then
  local left = redis.call('PTTL', lock)
  if left >= 0 and left + 1 < look then look = left + 1 end
end
local alive = math.min(patience, 2 * look + 5000)
redis.call('HSET', waiters, 'w' .. owner,
  string.format('%.0f %.0f %s %s %.0f', now + alive, now, life, inbox, now + look))
keep(queue, alive + 2 * tonumber(claim_ms))
keep(waiters, alive + 2 * tonumber(claim_ms))
return {0, look, position, holder}
""",
    _answer,
    wrote=lambda answer: not isinstance(answer, Busy),
)

# ARGV: owner, claim, fence lifetime -> {1 if it was mine, holder, 1 if forced}
RELEASE: Final = Script(
    "lock.release",
    _NAMES
    + """
local holder = redis.call('GET', lock)
if holder ~= owner then
  local forced = string.match(redis.call('GET', fence) or '', '^%d+ (.*)$') == owner
  return {0, holder or '', forced and 1 or 0}
end
if redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', lock)
  return {1, owner, 0}
end
"""
    + _GRANT
    + _QUEUE
    + """
pass_on()
return {1, owner, 0}
""",
    _standing,
)

# ARGV: owner, claim, fence lifetime -> {1 if it was mine, holder, 0}. How a waiter leaves, and how
# an acquire is undone: out of the queue, and what had reached it goes to the next.
LEAVE: Final = Script(
    "lock.leave",
    _NAMES
    + _GRANT
    + _QUEUE
    + """
forget(owner)
local holder = redis.call('GET', lock)
if holder ~= owner then return {0, holder or '', 0} end
local claim = redis.call('HGET', waiters, 'claim')
if claim and string.match(claim, '^%d+ %S+ (.*)$') == owner then
  redis.call('HDEL', waiters, 'claim')
end
pass_on()
return {1, owner, 0}
""",
    _standing,
    whole=True,
)

# KEYS: lock and fence only. Both exist while the lock is held, so a cluster that is moving the slot
# can still serve it: a script that names missing keys is turned away until the move is over.
# ARGV: owner, key lifetime ms, claim, fence lifetime -> {1 if mine, holder, 1 if forced}.
# Absolute: sets the life from now on, never adds, never shortens.
RENEW: Final = Script(
    "lock.renew",
    _NAMES
    + _KEEP
    + """
local holder = redis.call('GET', lock)
if holder ~= owner then
  local forced = string.match(redis.call('GET', fence) or '', '^%d+ (.*)$') == owner
  return {0, holder or '', forced and 1 or 0}
end
keep(lock, tonumber(ARGV[2]))
if redis.call('PTTL', fence) < fence_ms / 2 then redis.call('PEXPIRE', fence, fence_ms) end
return {1, owner, 0}
""",
    _standing,
    wrote=lambda standing: standing.mine,
)

# ARGV: '', claim, fence lifetime -> {1 if somebody held it, who, 0}
FORCE: Final = Script(
    "lock.force",
    _NAMES
    + _GRANT
    + _QUEUE
    + """
local holder = redis.call('GET', lock)
if not holder then return {0, '', 0} end
redis.call('HDEL', waiters, 'claim')
pass_on()
local number = string.match(redis.call('GET', fence) or '', '^%d+') or '0'
redis.call('SET', fence, number .. ' ' .. holder, 'PX', fence_ms)
return {1, holder, 0}
""",
    _standing,
)


_EXTRA: Final = (str(CLAIM_MS), str(FENCE_MS))


class AsyncLock(Pinned):
    """A fair lock with a lease. `hf.lock(...)` makes one; it may be used any number of times."""

    _scripts: tuple[Script[Any], Script[Standing]] = (RENEW, RELEASE)

    def __init__(
        self,
        kit: Kit,
        name: str,
        *,
        lease: Seconds = 30,
        wait: Wait = None,
        renew: bool = True,
        max_hold: Seconds | None = None,
        grace: Seconds = 0,
        acks: int | str | None = None,
        on_lost: OnLost = "raise",
        label: str | None = None,
        face: Callable[[AsyncHold], Any] | None = None,
    ) -> None:
        self.name: Final = checked_name(name)
        self._kit = kit
        self._wait = checked_wait(wait)
        self._label = checked_label(label)
        self._face = face or (lambda hold: hold)
        self._terms = Terms.of(
            kit,
            name,
            self._keys(name),
            (lease, renew, max_hold, grace, acks, on_lost),
            self._scripts,
            _EXTRA,
        )
        self._entered: dict[object, list[AsyncHold]] = {}

    @staticmethod
    def _keys(name: str) -> tuple[str, ...]:
        return name, aux(name, "fence"), aux(name, "queue"), aux(name, "waiters")

    # ── acquiring ──────────────────────────────────────────────────────────────────────────────

    async def acquire(self, wait: Wait | Unset = UNSET) -> AsyncHold:
        """Take the lock, waiting in line for at most `wait` seconds (None: without bound).

        Raises LockTimeout if it was not granted in time, Unavailable if the server could not be
        reached (a majority of several primaries: QuorumError); in either case nothing is left
        behind. Without `wait` the lock's own holds. One round trip if the lock is free.
        """
        patience = self._wait if isinstance(wait, Unset) else checked_wait(wait)
        began = self._kit.rt.now()
        got = await self._contend(self._kit.rt.token(self._label), patience)
        if isinstance(got, AsyncHold):
            return got
        waited = (self._kit.rt.now() - began) / NS_PER_S
        raise LockTimeout(
            f"{self.name!r} was not granted within {patience or 0:g} s: "
            f"held by {got.holder or 'nobody'}",
            waited=waited,
            holder=got.holder or None,
            name=self.name,
        )

    async def try_acquire(self) -> AsyncHold | None:
        """Take the lock if it is free and nobody waits for it; None otherwise. One round trip.

        Over several primaries only whether it is free counts. Raises Unavailable if the server, or
        a majority of them, could not be reached.
        """
        got = await self._contend(self._kit.rt.token(self._label), 0.0)
        return got if isinstance(got, AsyncHold) else None

    async def _contend(self, owner: str, wait: float | None) -> AsyncHold | Busy:
        """Acquire as `owner`, which must be unique: whoever gives it again is granted as well."""
        rt = self._kit.rt
        began = rt.now()
        if rt.wants(Acquiring):
            rt.emit(Acquiring(self.name, owner, wait))
        signal = rt.listen(owner) if wait != 0 else None
        try:
            got = await self._attempts(owner, began, wait, signal)
            if isinstance(got, AsyncHold):
                if rt.wants(Granted):
                    waited = (rt.now() - began) / NS_PER_S
                    rt.emit(Granted(self.name, owner, got.fence, waited))
            elif rt.wants(Refused):
                waited = (rt.now() - began) / NS_PER_S
                rt.emit(Refused(self.name, owner, waited, got.holder or None))
            return got
        except BaseException as error:
            await compensate(rt, error, lambda: self._withdraw(owner))
            raise
        finally:
            rt.unlisten(owner)

    async def _attempts(
        self, owner: str, began: int, wait: float | None, signal: Signal | None
    ) -> AsyncHold | Busy:
        """Ask until granted or out of time. Every question is the same, and safe to repeat."""
        kit, rt = self._kit, self._kit.rt
        ends = None if wait is None else began + int(wait * NS_PER_S)
        failing_since: int | None = None
        announced = False
        sent = began
        while True:
            left = None if ends is None else max(0, ends - sent)
            try:
                answer = await rt.call(self._acquire_call(owner, left, wait))
            except NodeError as error:
                error.name = self.name
                failing_since = sent if failing_since is None else failing_since
                await self._outlast(error, failing_since, ends)
                sent = rt.now()
                continue
            failing_since = None
            if not isinstance(answer, Busy):
                if rt.now() < sent + self._terms.span_ns:
                    return AsyncHold(kit, self._terms, owner, answer, sent, self._face)
                # Granted, but the answer was under way for longer than the lease.
                await rt.shield(self._withdraw(owner))
                answer = Busy(0, 0, owner)
            if left == 0 or signal is None:
                return answer
            if not announced and rt.wants(Waiting):
                announced = True
                rt.emit(Waiting(self.name, owner, answer.position, answer.holder))
            pause = answer.look_ms / 1000 * rt.jitter(1.0, 1.1)
            await self._pause(signal, rt.now() + int(pause * NS_PER_S), ends)
            sent = rt.now()

    async def _pause(self, signal: Signal, look: int, ends: int | None) -> None:
        """Wait until it is time to look: called, told when, or left alone for long enough."""
        rt = self._kit.rt
        while (now := rt.now()) < (look if ends is None else min(look, ends)):
            until = look if ends is None else min(look, ends)
            if not await rt.wait(signal, (until - now) / NS_PER_S, inbox=True):
                return
            in_ms = signal.told()
            if in_ms is None:
                return
            look = min(look, rt.now() + in_ms * NS_PER_MS)

    async def _outlast(
        self, error: NodeError | QuorumError, failing_since: int, ends: int | None
    ) -> None:
        """After a failed exchange: pause and return to ask again, or give up by raising.

        The owner id stays the same, so a grant whose reply was lost is found, not doubled.
        """
        rt = self._kit.rt
        now = rt.now()
        over = ends is not None and now >= ends
        if not error.transient:
            raise error
        if over and not (error.sent and now - failing_since < NS_PER_S // 4):
            raise error
        if now - failing_since >= OUTAGE_NS:
            raise error
        pause = rt.jitter(0.02, 0.2)
        if ends is not None:
            pause = min(pause, max(0.0, (ends - now) / NS_PER_S))
        if pause > 0:
            await rt.wait(rt.signal(), pause)

    def _acquire_call(self, owner: str, left: int | None, wait: float | None) -> Call[int | Busy]:
        terms, timeout = self._terms, self._kit.timeout
        patience = FOREVER_MS
        if left is not None:
            patience = math.ceil(left / NS_PER_MS)
            if wait:  # a short wait must not become a long one because a server hangs
                timeout = min(timeout, left / NS_PER_S + 0.25)
        args = (owner, terms.life, str(patience), self._kit.rt.inbox, *_EXTRA)
        return Call(ACQUIRE, terms.keys, args, timeout, acks=terms.acks, tied=owner)

    async def _withdraw(self, owner: str) -> None:
        """Undo whatever this owner may have: a place in the queue, a reservation, the lock."""
        timeout = min(1.0, self._kit.timeout)
        await self._kit.rt.call(
            Call(LEAVE, self._terms.keys, (owner, *_EXTRA), timeout, tied=owner)
        )

    # ── for people and for operators ───────────────────────────────────────────────────────────

    async def info(self) -> LockInfo:
        """Who holds the lock, for how long yet, and who waits. One round trip; changes nothing.

        Over several primaries what a majority says; all of them are waited for.
        """
        now = await self._kit.rt.call(Call(INFO, self._terms.keys, (), self._kit.timeout))
        return now.info(self.name)

    async def force_release(self) -> str | None:
        """Take the lock away from whoever holds it, for operators. Returns the owner id, or None.

        The next waiter gets it. The old holder learns of it at its next renewal, and its fence is
        old at once. One round trip; over several primaries two, and the first waiter is told.
        """
        found = await self._kit.rt.call(
            Call(FORCE, self._terms.keys, ("", *_EXTRA), self._kit.timeout)
        )
        return found.holder if found.mine else None

    # ── as a context manager and a decorator ───────────────────────────────────────────────────

    async def __aenter__(self) -> AsyncHold:
        depth = self._depth()
        try:
            hold = await self.acquire()
            hold.scope = self._kit.rt.scope()
            self._entered.setdefault(self._kit.rt.me(), []).append(hold)
            return hold
        except BaseException as error:
            await self._unwind(depth, error)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._left()._leave(error)

    def _depth(self) -> int:
        """How many blocks of this lock the flow is in: one, unless something went wrong."""
        return len(self._entered.get(self._kit.rt.me(), ()))

    async def _unwind(self, depth: int, error: BaseException) -> None:
        """Give back what was entered beyond `depth` by a block that will not be left.

        Ctrl-C can come between the grant and the block, or before its end begins. The lock object
        would keep such a hold, and the keeper would renew it, for as long as the object lives.
        """
        holds = self._entered.get(self._kit.rt.me(), [])
        while len(holds) > depth:
            await compensate(self._kit.rt, error, holds.pop().release)
        if not holds:
            self._entered.pop(self._kit.rt.me(), None)

    def _left(self) -> AsyncHold:
        """The hold of the block that this flow leaves now: the lock object may be shared."""
        flow = self._kit.rt.me()
        if flow not in self._entered and len(self._entered) == 1:
            flow = next(iter(self._entered))  # entered by one task, left by another: unambiguous
        holds = self._entered.get(flow)
        if not holds:
            raise UsageError(f"{self.name!r}: this flow has not entered the lock", name=self.name)
        hold = holds.pop()
        if not holds:
            del self._entered[flow]
        return hold

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate a coroutine function: each call runs under the lock.

        If the lock was lost while the function ran to its end, the LockLost that is raised carries
        what it returned as `result`.
        """
        if not inspect.iscoroutinefunction(function):
            raise UsageError(
                f"{function!r} is not a coroutine function: decorate it with a lock of "
                "holdfast.connect(), not of holdfast.aio.connect()",
                name=self.name,
            )

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            result: list[R] = []
            try:
                async with self:
                    result.append(await function(*args, **kwargs))
            except LockLost as lost:
                if result and lost.name == self.name:
                    lost.result = result[0]
                raise
            return result[0]

        return locked

    def __repr__(self) -> str:
        return f"<lock {self.name!r}>"


class Lock(Pinned):
    """A fair lock with a lease. `hf.lock(...)` makes one; it may be used any number of times."""

    def __init__(
        self,
        kit: Kit,
        name: str,
        *,
        lease: Seconds = 30,
        wait: Wait = None,
        renew: bool = True,
        max_hold: Seconds | None = None,
        grace: Seconds = 0,
        acks: int | str | None = None,
        on_lost: OnLost = "raise",
        label: str | None = None,
    ) -> None:
        self._lock: AsyncLock = kit.lock(
            kit,
            name,
            lease=lease,
            wait=wait,
            renew=renew,
            max_hold=max_hold,
            grace=grace,
            acks=acks,
            on_lost=on_lost,
            label=label,
            face=Hold,
        )

    @property
    def name(self) -> str:
        """The lock's name, and the key it stands at."""
        return self._lock.name

    def acquire(self, wait: Wait | Unset = UNSET) -> Hold:
        """Take the lock, waiting in line for at most `wait` seconds (None: without bound).

        Raises LockTimeout if it was not granted in time, Unavailable if the server could not be
        reached (a majority of several primaries: QuorumError); in either case nothing is left
        behind. Without `wait` the lock's own holds. One round trip if the lock is free.
        """
        return Hold(run(self._lock.acquire(wait)))

    def try_acquire(self) -> Hold | None:
        """Take the lock if it is free and nobody waits for it; None otherwise. One round trip.

        Over several primaries only whether it is free counts. Raises Unavailable if the server, or
        a majority of them, could not be reached.
        """
        hold = run(self._lock.try_acquire())
        return None if hold is None else Hold(hold)

    def info(self) -> LockInfo:
        """Who holds the lock, for how long yet, and who waits. One round trip; changes nothing.

        Over several primaries what a majority says; all of them are waited for.
        """
        return run(self._lock.info())

    def force_release(self) -> str | None:
        """Take the lock away from whoever holds it, for operators. Returns the owner id, or None.

        The next waiter gets it. The old holder learns of it at its next renewal, and its fence is
        old at once. One round trip; over several primaries two, and the first waiter is told.
        """
        return run(self._lock.force_release())

    # Enter and exit are more than one expression: in a thread, Ctrl-C comes at any instruction.

    def __enter__(self) -> Hold:
        depth = self._lock._depth()
        try:
            return Hold(run(self._lock.__aenter__()))
        except BaseException as error:
            run(self._lock._unwind(depth, error))
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            run(self._lock.__aexit__(kind, error, traceback))
        except Exception:
            raise
        except BaseException as interruption:
            # All of them: a flow can be in a second block only if the first one's hold is lost.
            run(self._lock._unwind(0, interruption))
            raise

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call runs under the lock.

        If the lock was lost while the function ran to its end, the LockLost that is raised carries
        what it returned as `result`.
        """
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(
                f"{function!r} does not run when it is called: use a lock of "
                "holdfast.aio.connect() for coroutine functions, and `with` inside generators",
                name=self.name,
            )

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            result: list[R] = []
            try:
                with self:
                    result.append(function(*args, **kwargs))
            except LockLost as lost:
                if result and lost.name == self.name:
                    lost.result = result[0]
                raise
            return result[0]

        return locked

    def __repr__(self) -> str:
        return repr(self._lock)
