"""RedisPyLock: the blocking face."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from redis.exceptions import LockError

from ..core.runtime import run
from ..errors import Unavailable
from ..locks.lock import AsyncLock
from ._clients import kit_of
from ._local import Place, ThreadPlace
from ._protocol import (
    as_redis_error,
    checked_timeout,
    encoded,
    give_back,
    grip_at,
    log_loss,
    new_core,
    not_owned,
    patience,
    prolong,
    take,
)

T = TypeVar("T")


class RedisPyLock:
    """redis-py's Lock, run by holdfast: `redis.Redis().lock(name, lock_class=RedisPyLock)`.

    Fair among its kind, excludes redis-py's own locks of that name, never without a TTL; the
    differences are listed at `holdfast.compat`. Every method raises redis.exceptions: LockError,
    LockNotOwnedError, and ConnectionError or TimeoutError where the server cannot be asked; and
    `holdfast.UsageError` (a ValueError, as LockError is) for what cannot be right.
    """

    def __init__(
        self,
        redis: Any,
        name: str,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        """Make a lock object; cheap, sends nothing.

        timeout            seconds after which the lock ends unless it is extended; None: 30 s,
                           renewed while it is held
        sleep              not used: waiting is not polling
        blocking           whether `acquire` waits
        blocking_timeout   the most seconds that it waits; None: without bound
        thread_local       whether each thread sees only what it acquired itself; False: one thread
                           may release what another acquired
        raise_on_release_error
                           whether the end of a `with` block raises if the lock was lost; it is
                           logged otherwise
        """
        checked_timeout(timeout)
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local = ThreadPlace() if self.thread_local else Place()
        self._made: tuple[tuple[str, float | None], AsyncLock] | None = None

    def _core(self) -> AsyncLock:
        kit, of = kit_of(self.redis), (self.name, self.timeout)
        made = self._made
        if made is None or made[0] != of or made[1]._kit is not kit:
            made = self._made = (of, new_core(kit, self.redis, *of))
        return made[1]

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | None = None,
    ) -> bool:
        """Take the lock. True once it is acquired, False if it was not in the time given.

        What is None is as the lock was made. `token` (str or bytes, UTF-8) then stands in the key;
        it need not be unique. Waiters are served in order; after an error, or Ctrl-C, nothing is
        left behind. One round trip if the lock is free, one more with a token.
        """
        wait = patience(
            self.blocking if blocking is None else blocking,
            self.blocking_timeout if blocking_timeout is None else blocking_timeout,
        )
        name = None if token is None else encoded(self.redis, token)
        grip = _finish(take(self._core(), wait, name))
        if grip is not None:
            self.local.put(grip)
        return grip is not None

    def locked(self) -> bool:
        """Whether anybody holds the lock, or it is about to be handed over. One round trip."""
        return _finish(self._core().info()).holder is not None

    def owned(self) -> bool:
        """Whether this lock object (with `thread_local`: this thread) holds the lock.

        One round trip; none if it acquired nothing, or knows that it lost it.
        """
        grip = grip_at(self.local.place(), self.redis)
        if grip is None or grip.is_over():
            return False
        return _finish(self._core().info()).holder == grip.owner

    def release(self) -> None:
        """Give the lock back, to the next waiter if there is one. One round trip.

        Raises LockError if nothing was acquired, LockNotOwnedError if the lock was lost. After a
        ConnectionError or TimeoutError it may be repeated; if it is not, the lock ends by itself.
        """
        place = self.local.place()
        grip = grip_at(place, self.redis)
        if grip is None:
            raise LockError(
                "Cannot release a lock that's not owned or is already unlocked.",
                lock_name=self.name,
            )
        released = _finish(give_back(self._core(), grip))
        self.local.vacate(place, grip)
        if not released:
            raise not_owned("release", self.name)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add seconds to what is left of the lock, or have it for that many from now on.

        Never adds twice, also if a reply is lost. Two round trips; one with `replace_ttl`. Raises
        LockError if nothing was acquired or the lock has no timeout, LockNotOwnedError if it was
        lost.
        """
        self._prolong("extend", additional_time, add=not replace_ttl)
        return True

    def reacquire(self) -> Literal[True]:
        """Have the lock for its whole `timeout` again from now on. One round trip.

        Raises LockError if nothing was acquired or the lock has no timeout, LockNotOwnedError if it
        was lost.
        """
        self._prolong("reacquire", self.timeout, add=False)
        return True

    def _prolong(self, verb: str, duration: float | None, *, add: bool) -> None:
        grip = grip_at(self.local.place(), self.redis)
        if grip is None:
            raise LockError(f"Cannot {verb} an unlocked lock", lock_name=self.name)
        if not self.timeout:
            raise LockError(f"Cannot {verb} a lock with no timeout", lock_name=self.name)
        if not _finish(prolong(self._core(), grip, duration, add=add)):
            raise not_owned(verb, self.name)

    def __enter__(self) -> Self:
        """Acquire; LockError if it was not granted in time."""
        if self.acquire():
            return self
        raise LockError("Unable to acquire lock within the time specified", lock_name=self.name)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release; see `raise_on_release_error`."""
        try:
            self.release()
        except LockError as error:
            if self.raise_on_release_error:
                raise
            log_loss(self.name, error)

    def __repr__(self) -> str:
        return f"<RedisPyLock {self.name!r}>"


def _finish(work: Coroutine[Any, Any, T]) -> T:
    try:
        return run(work)
    except Unavailable as error:
        raise as_redis_error(error) from error
