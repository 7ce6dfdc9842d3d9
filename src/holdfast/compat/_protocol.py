"""What both faces do, written once over the runtime port.

Guarantees    as of holdfast.locks.lock. A token given by the user need not be unique: the lock is
              acquired under an owner id of our own and takes the token's name then, so two flows
              with one token exclude each other, and undoing one never touches the other.
Costs         acquire 1 round trip when free, 1 more with a token; release, owned, locked, reacquire
              and extend(replace_ttl=True) 1; extend 2: it reads when the lock ends and sets an
              absolute time after it, so that a lost reply cannot add twice.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Final, TypeVar

import redis.exceptions
from redis.exceptions import LockError, LockNotOwnedError

from ..core.compensate import compensate
from ..core.lease import NS_PER_S, seconds
from ..core.script import Call, Script
from ..errors import HoldfastError, LockLost, NodeError, Unavailable, UsageError
from ..locks.hold import RELEASED, AsyncHold
from ..locks.lock import AsyncLock
from ..locks.terms import Kit, Standing
from ._clients import LONGEST_S
from ._local import Grip, Place

T = TypeVar("T")
RENEWED_LEASE_S: Final = 30
ATTEMPTS: Final = 2
log = logging.getLogger("holdfast.compat")

# ARGV: the owner id that was granted, the token -> 1 if the token stands in the key now.
ADOPT: Final = Script(
    "compat.adopt",
    """
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[2] then return 1 end  -- the reply to an earlier run was lost
if holder ~= ARGV[1] then return 0 end
local left = redis.call('PTTL', KEYS[1])
if left <= 0 then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', left)
return 1
""",
    bool,
)

# ARGV: owner -> when the lock ends, in ms of the server's clock; 0 if it is not the owner's.
ENDS: Final = Script(
    "compat.ends",
    """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return '0' end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then return '0' end
local clock = redis.call('TIME')
return string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000) + left)
""",
    int,
)

# ARGV: owner, PEXPIRE or PEXPIREAT, ms -> 1 if the lock was the owner's.
LAST: Final = Script(
    "compat.last",
    """
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('PTTL', KEYS[1]) < 0 then return 0 end
redis.call(ARGV[2], KEYS[1], ARGV[3])
return 1
""",
    bool,
)


# ── arguments ──────────────────────────────────────────────────────────────────────────────────


def checked_timeout(timeout: Any) -> None:
    """Raise UsageError for a `timeout` that cannot be right."""
    if timeout is not None:
        seconds(timeout, "timeout", most=LONGEST_S)


def patience(blocking: bool, blocking_timeout: Any) -> float | None:
    """The wait that `blocking` and `blocking_timeout` ask for; None: without bound."""
    if not blocking:
        return 0.0
    if blocking_timeout is None:
        return None
    most = max(0.0, seconds(blocking_timeout, "blocking_timeout", least=-math.inf))
    # It is the most that may pass: the last question is asked early enough to be answered by then.
    return most - min(0.01, most / 20)


def encoded(client: Any, value: Any) -> bytes:
    """`value` as the redis-py client would send it."""
    if isinstance(value, bytes):
        return value
    # redis.asyncio.Redis has it at its pool, clusters and redis.Redis at the client.
    has_it = client if hasattr(client, "get_encoder") else client.connection_pool
    return bytes(has_it.get_encoder().encode(value))


def plain(what: str, value: bytes) -> str:
    """The text of a name or token, as holdfast takes it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{what} {value!r} is not UTF-8: holdfast sends names as text") from None


def new_core(kit: Kit, client: Any, name: Any, timeout: Any) -> AsyncLock:
    """The holdfast lock under a lock object. Sends nothing; UsageError if it cannot be right."""
    return AsyncLock(
        kit,
        plain("lock name", encoded(client, name)),
        lease=timeout or RENEWED_LEASE_S,
        renew=not timeout,
        on_lost="ignore",
    )


def grip_at(place: Place, client: Any) -> Grip | None:
    """What is acquired at this place; also if a token was put there by hand."""
    if place.token is None:
        return None
    token = encoded(client, place.token)
    if place.grip is None or place.grip.token != token:
        owner = plain("token", token)
        place.grip = Grip(token, owner, owner, None)
    return place.grip


# ── acquiring ──────────────────────────────────────────────────────────────────────────────────


async def take(core: AsyncLock, wait: float | None, token: bytes | None) -> Grip | None:
    """Acquire within `wait`, under this token if one is given. None: not granted in time."""
    rt = core._kit.rt
    wanted = None if token is None else plain("token", token)
    began = rt.now()
    left = wait
    while True:
        word = rt.token("")
        got = await core._contend(word, left)
        if not isinstance(got, AsyncHold):
            return None
        if wanted is None or await _adopt(core, got, wanted):
            break
        # Taken away between the grant and the adoption: into the line again.
        if wait is not None:
            left = max(0.0, wait - (rt.now() - began) / NS_PER_S)
            if not left:
                return None
    if core._terms.renew:
        return Grip(got.owner.encode(), got.owner, word, got)
    # As in redis-py, only the server says how long it lasts: others may have prolonged it, and
    # leaving it to end by itself is a use, not a mistake to warn of.
    _dismiss(got)
    return Grip(got.owner.encode(), got.owner, word, None)


async def _adopt(core: AsyncLock, hold: AsyncHold, token: str) -> bool:
    kit, word = core._kit, hold.owner
    call = Call(ADOPT, (core.name,), (word, token), kit.timeout, tied=word)
    try:
        adopted = await _insist(kit, call)
    except BaseException as error:
        await compensate(kit.rt, error, lambda: _undo(core, hold, token))
        raise
    finally:
        kit.rt.unlisten(word)
    # While the hold is valid the key is ours, so a token found there is the one we wrote.
    if adopted and not hold.is_lost():
        hold._owner = token
        return True
    hold._lose("expired or deleted")
    return False


async def _undo(core: AsyncLock, hold: AsyncHold, token: str) -> None:
    # The token first: after the owner id was freed, the next holder may have the same token.
    valid = hold.remaining() > 0
    _dismiss(hold)
    for owner in (token, hold.owner) if valid else (hold.owner,):
        await core._kit.rt.call(_release_call(core, owner, hold.owner))


def _dismiss(hold: AsyncHold) -> None:
    hold._kit.keeper.forget(hold)
    hold._state = RELEASED


# ── giving back ────────────────────────────────────────────────────────────────────────────────


async def give_back(core: AsyncLock, grip: Grip) -> bool:
    """Release. False if the lock was lost. Safe to repeat after any error."""
    if not grip.is_ours():
        return False
    hold = grip.hold
    if hold is not None and hold._kit is not core._kit:
        # The loop that renewed it has ended: what may be left of it is in the key only.
        hold._lose("its event loop ended")
        hold = grip.hold = None
    if hold is not None:
        try:
            await hold.release()
        except LockLost:
            return False
        return True
    try:
        return await _release(core, grip)
    except HoldfastError:
        raise
    except BaseException as error:
        # Cancelled, or Ctrl-C: the request may or may not have left. Asking again is harmless.
        grip.sent = True
        await compensate(core._kit.rt, error, lambda: _release(core, grip))
        raise
    finally:
        core._kit.rt.unlisten(grip.word)


async def _release(core: AsyncLock, grip: Grip) -> bool:
    rt, timeout = core._kit.rt, core._kit.timeout
    began = rt.now()
    while True:
        try:
            standing = await rt.call(_release_call(core, grip.owner, grip.word))
            break
        except NodeError as error:
            grip.sent = grip.sent or error.sent
            if rt.now() - began >= timeout * NS_PER_S / 2:
                raise
            await rt.wait(rt.signal(), rt.jitter(0.01, 0.05))
    # After a lost reply "not mine" means that the lost one had released it.
    return standing.mine or grip.sent


def _release_call(core: AsyncLock, owner: str, word: str) -> Call[Standing]:
    # Tied to what is unique even if the owner is a token that is used again: a release that is
    # late must not overtake the next one, and end somebody else's lock.
    terms = core._terms
    args = (owner, *terms.extra)
    return Call(terms.release_script, terms.keys, args, core._kit.timeout, tied=word)


# ── prolonging ─────────────────────────────────────────────────────────────────────────────────


async def prolong(core: AsyncLock, grip: Grip, duration: Any, *, add: bool) -> bool:
    """Let the lock end `duration` from now, or that much later than it would. False: not ours."""
    if grip.is_over():
        return False
    kit, key = core._kit, (core.name,)
    span = int(seconds(duration, "additional_time", least=-math.inf, most=LONGEST_S) * 1000)
    args = (grip.owner, "PEXPIRE", str(span))
    if add:
        ends = await _insist(kit, Call(ENDS, key, (grip.owner,), kit.timeout))
        if not ends:
            return False
        args = (grip.owner, "PEXPIREAT", str(ends + span))
    return await _insist(kit, Call(LAST, key, args, kit.timeout))


async def _insist(kit: Kit, call: Call[T]) -> T:
    """The answer to a call that may be repeated, asked for once more if it is lost."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await kit.rt.call(call)
        except NodeError:
            continue
    return await kit.rt.call(call)


# ── errors ─────────────────────────────────────────────────────────────────────────────────────


def as_redis_error(error: Unavailable) -> redis.exceptions.RedisError:
    """What redis-py would have raised."""
    if isinstance(error.__cause__, TimeoutError | redis.exceptions.TimeoutError):
        return redis.exceptions.TimeoutError(str(error))
    return redis.exceptions.ConnectionError(str(error))


def not_owned(verb: str, name: Any) -> LockNotOwnedError:
    """The lock was lost: it ended, or somebody took it."""
    return LockNotOwnedError(f"Cannot {verb} a lock that's no longer owned", lock_name=name)


def log_loss(name: Any, error: LockError) -> None:
    """Instead of raising at the end of a block, where the user wants it so."""
    why = "no longer owned" if isinstance(error, LockNotOwnedError) else "unlocked"
    log.warning("lock %r was %s at the end of its block", name, why)
