"""What one node of a quorum does: the scripts, and what their answers mean.

A node promises three things: it takes a number only if it is larger than any before, it gives the
lock to nobody else while the key stands, and after it may have forgotten grants it makes none until
the last of them is over.

Everything may arrive late, and out of order, from a connection that died long ago. So whoever ends
something names the number under which it was begun. The node raises its own to that, and what comes
later with a smaller one, or the same, has no effect: a late acquire cannot revive what was given
back, a late give-back cannot take away what was won by a later vote, and a late renewal cannot
revive what was released.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...core.script import Script, text
from ..info import INFO as INFO_OF_ONE
from ..info import Snapshot
from ..terms import Standing

GUARD_MS: Final = 365 * 24 * 3600 * 1000
QUEUE_MS: Final = 120 * 1000

_NAMES = """
local lock, fence, queue, guard = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, fence_ms = ARGV[1], tonumber(ARGV[2])
"""

# ARGV from the end: run id, guard lifetime, quarantine (0: do not ask).
_GUARD = """
local run_id, guard_ms = ARGV[#ARGV], tonumber(ARGV[#ARGV - 1])
local quarantine = tonumber(ARGV[#ARGV - 2])

-- nil where this node may grant; else why not, and for how many ms. A server that is not the one
-- which wrote the guard (or lost it: flush, eviction) may have forgotten grants: it makes none
-- until the last of them is over. The clock is the node's own, as it is for leases.
local function refusal(number)
  if quarantine == 0 then return nil end
  local value = redis.call('GET', guard) or ''
  -- Nearly always: it is this server's, and no quarantine is under way. `number` is a clock's, in
  -- us: one time in 64, as chance has it, the guard is kept alive.
  if number % 64 ~= 0 and value == run_id .. ' 0 ' .. ARGV[#ARGV - 2] then return nil end
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local run, free_at, agreed = string.match(value, '^(%S+) (%d+) (%d+)$')
  agreed = tonumber(agreed) or quarantine
  if run ~= run_id then
    local longest = math.max(agreed, quarantine)
    redis.call('SET', guard,
      string.format('%s %.0f %.0f', run_id, now + longest, agreed), 'PX', guard_ms)
    return 3, longest
  end
  if agreed ~= quarantine then return 4, agreed end
  if now <= tonumber(free_at) then return 3, tonumber(free_at) - now + 1 end
  redis.call('SET', guard, string.format('%s 0 %.0f', run_id, agreed), 'PX', guard_ms)
  return nil
end
"""

_FENCE = """
-- The largest number promised; the one under which the lock was last taken; the largest one whose
-- hold has ended; and the owner whose hold was last ended by force, or nothing. Numbers stay the
-- digits that they came as, and are compared as numbers.
local function promised()
  local value = redis.call('GET', fence) or ''
  local largest, taken, over, forced = string.match(value, '^(%d+) (%d+) (%d+) ?(.*)$')
  largest = largest or string.match(value, '^%d+')
  return largest or '0', taken or '0', over or '0', forced or ''
end

local function larger(one, other)
  return tonumber(one) < tonumber(other) and other or one
end

local function promise(largest, taken, over, forced)
  local value = largest .. ' ' .. taken .. ' ' .. over
  if forced ~= '' then value = value .. ' ' .. forced end
  redis.call('SET', fence, value, 'PX', fence_ms)
end
"""

# Tell whoever came first that the lock may be free. An inbox that nobody reads has died with its
# process, so the next one is told. Who is told leaves the queue, and is back with its next look.
_ANNOUNCE = """
local function announce()
  local dead = {}
  for _, first in ipairs(redis.call('ZRANGE', queue, 0, 4999)) do
    redis.call('ZREM', queue, first)
    local who, inbox = string.match(first, '^([^%c]*)%c(.*)$')
    if inbox and not dead[inbox] then
      local heard = redis.pcall('PUBLISH', inbox, who)
      if type(heard) ~= 'number' or heard > 0 then return end
      dead[inbox] = true
    end
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


def _standing(reply: Any) -> Standing:
    return Standing(reply[0] == 1, text(reply[1]), reply[2] == 1, reply[2] == 2)


def _renewed(reply: Any) -> Standing | Vote:
    return Vote(reply[0], int(reply[1])) if reply[0] > 1 else _standing(reply)


# ARGV: owner, fence lifetime, fence proposed, key lifetime ms, patience ms (0: do not queue),
# us waited so far, inbox, quarantine, guard lifetime, run id
# -> {1, 0, 0, ''} granted; {0, key ends in ms, position, holder}; {2, fence promised, 0, ''};
#    {3, quarantine ms, 0, ''}; {4, quarantine ms agreed, 0, ''}
ACQUIRE: Final = Script(
    "redlock.acquire",
    _NAMES
    + _GUARD
    + _FENCE
    + """
local proposed, life, inbox = ARGV[3], ARGV[4], ARGV[7]
local holder = redis.call('GET', lock)
local me = owner .. string.char(10) .. inbox
if holder and holder ~= owner then
  local patience = tonumber(ARGV[5])
  if patience <= 0 then return {0, redis.call('PTTL', lock), 0, holder} end
  local clock = redis.call('TIME')
  redis.call('ZADD', queue,
    string.format('%.0f', clock[1] * 1000000 + clock[2] - tonumber(ARGV[6])), me)
  if redis.call('PTTL', queue) < patience then redis.call('PEXPIRE', queue, patience) end
  return {0, redis.call('PTTL', lock), redis.call('ZRANK', queue, me), holder}
end
local largest, taken, over, forced = promised()
if holder then
  -- Mine already: an earlier reply was lost, or an earlier vote. A larger fence is accepted anew.
  if tonumber(proposed) < tonumber(largest) then return {2, largest, 0, ''} end
  -- What comes late must not shorten what was extended meanwhile.
  local left = redis.call('PTTL', lock)
  if left > tonumber(life) then life = left end
else
  local why, ms = refusal(proposed)
  if why then return {why, ms, 0, ''} end
  if tonumber(proposed) <= tonumber(largest) then return {2, largest, 0, ''} end
end
promise(proposed, proposed, over, forced)
redis.call('SET', lock, owner, 'PX', life)
if redis.call('ZCARD', queue) == 0 then return {1, 0, 0, ''} end
redis.call('ZREM', queue, me)
-- Whoever is next is told when the lock ends by itself: nobody says so if its holder crashes.
-- Somebody of another process, if there is one: that of the holder takes its own waiters with it.
local next, to
for _, waiting in ipairs(redis.call('ZRANGE', queue, 0, 7)) do
  local who, where = string.match(waiting, '^([^%c]*)%c(.*)$')
  if not next or where ~= inbox then next, to = who, where end
  if to ~= inbox then break end
end
if next then redis.pcall('PUBLISH', to, next .. string.char(10) .. (tonumber(life) + 1)) end
return {1, 0, 0, ''}
""",
    _vote,
)

# ARGV: owner, fence lifetime, fence of the hold, key lifetime ms, quarantine, guard lifetime,
# run id -> {1 if mine, holder, 1 if ended by force, 2 if it had no key and took me in again},
# or {3, quarantine ms, 0}: it may have forgotten me; or {4, quarantine ms agreed, 0}.
RENEW: Final = Script(
    "redlock.renew",
    _NAMES
    + _GUARD
    + _FENCE
    + """
local mine, life = ARGV[3], tonumber(ARGV[4])
local holder = redis.call('GET', lock)
if holder == owner then
  if redis.call('PTTL', lock) < life then redis.call('PEXPIRE', lock, life) end
  if redis.call('PTTL', fence) < fence_ms / 2 then redis.call('PEXPIRE', fence, fence_ms) end
  return {1, owner, 0}
end
local largest, taken, over, forced = promised()
if holder or tonumber(mine) <= tonumber(over) then
  return {0, holder or '', forced == owner and 1 or 0}
end
-- No key: the node was not asked, or had no vote, or has forgotten. From now on it vouches for me;
-- until now it did not, and I am told so. A larger number promised may be one that lost its vote.
local why, ms = refusal(mine)
if why then return {why, ms, 0} end
promise(larger(largest, mine), mine, over, forced)
redis.call('SET', lock, owner, 'PX', ARGV[4])
return {1, owner, 2}
""",
    _renewed,
)

# ARGV: owner, fence lifetime, fence of the hold, inbox
# -> {1 if it was mine, holder, 1 if ended by force}
RELEASE: Final = Script(
    "redlock.release",
    _NAMES
    + _FENCE
    + _ANNOUNCE
    + """
local waiting = redis.call('ZCARD', queue) > 0
if waiting then redis.call('ZREM', queue, owner .. string.char(10) .. ARGV[4]) end
local holder = redis.call('GET', lock)
local mine, largest, taken, over, forced = ARGV[3], promised()
promise(larger(largest, mine), taken, larger(over, mine), forced)
if holder ~= owner then return {0, holder or '', forced == owner and 1 or 0} end
redis.call('DEL', lock)
if waiting then announce() end
return {1, owner, 0}
""",
    _standing,
    whole=True,  # it may be delivered when nobody listens for a NOSCRIPT any more
)

# ARGV: owner, fence lifetime, largest fence proposed, inbox, 1 to stay in the queue
# -> {1 if it was mine, holder, 0}. What a lost vote had gained is given back silently: the others
# that lost retry by themselves, at random times. Who goes for good may have been told already, and
# passes that on.
LEAVE: Final = Script(
    "redlock.leave",
    _NAMES
    + _FENCE
    + _ANNOUNCE
    + """
local proposed, stays = ARGV[3], ARGV[5] == '1'
if not stays then redis.call('ZREM', queue, owner .. string.char(10) .. ARGV[4]) end
local holder = redis.call('GET', lock)
local largest, taken, over, forced = promised()
if tonumber(largest) < tonumber(proposed) then promise(proposed, taken, over, forced) end
-- Taken under a larger number: a later vote of mine won here, and this comes late.
if holder == owner and tonumber(taken) > tonumber(proposed) then return {0, holder, 0} end
if holder == owner then redis.call('DEL', lock) end
if not stays and (not holder or holder == owner) then announce() end
return {holder == owner and 1 or 0, holder or '', 0}
""",
    _standing,
    whole=True,
)

# ARGV: owner to end, fence lifetime, its fence -> {1 if it was there, holder, 0}. By name, so that
# a node that is told late does not take away what somebody else has won meanwhile.
FORCE: Final = Script(
    "redlock.force",
    _NAMES
    + _FENCE
    + _ANNOUNCE
    + """
local ended, largest, taken, over = ARGV[3], promised()
local holder = redis.call('GET', lock)
if holder == owner then ended = larger(ended, taken) end
promise(larger(largest, ended), taken, larger(over, ended), owner)
if holder ~= owner then return {0, holder or '', 0} end
redis.call('DEL', lock)
announce()
return {1, owner, 0}
""",
    _standing,
)


def _snapshot(reply: Any) -> Snapshot:
    holder, pttl, fence, waiting, waiters = reply
    taken = text(fence).split(" ")[1:2]  # the largest number promised may be one that lost
    return Snapshot(
        None if holder is None else text(holder),
        int(pttl),
        int(taken[0]) if taken and taken[0].isdecimal() else 0,
        int(waiting),
        tuple(text(waiter).partition("\n")[0] for waiter in waiters),
    )


# ARGV: none -> {holder, PTTL, fence, how many wait, the first hundred}
INFO: Final = Script("redlock.info", INFO_OF_ONE.lua, _snapshot)

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
