"""Drop-in replacements for the Lock classes of redis-py, which run on holdfast.

    r = redis.Redis()
    with r.lock("order:123", timeout=10, lock_class=holdfast.compat.RedisPyLock):
        ...

Constructor, methods and errors (`redis.exceptions`) are redis-py's; a lock of redis-py on the same
name excludes these and is excluded by them. What differs, on purpose:

Always a TTL        `timeout=None` is a lease of 30 s that is renewed as long as it is held and its
                    lock object lives (with `thread_local`, also the thread that acquired it). What
                    crashed, or was dropped, is free after 30 s. `timeout=0` is the same.
Waiting             is fair, in the order of arrival, and ends with a message, not with a poll:
                    `sleep` is accepted and not used. A `blocking_timeout` is waited for in full
                    (to 10 ms), also where `sleep` is longer. A lock object whose holder is a plain
                    redis-py lock looks twice a second.
Release             may be repeated after a connection error or a cancellation; it says
                    LockNotOwnedError only when the lock was really lost.
Tasks               with `thread_local` (the default) tasks that share one asyncio lock object do
                    not mistake each other's locks for theirs. A task that acquired nothing may
                    still release what another one acquired, if there is only one.
Forks               a forked child does not own what its parent acquired.
`local.token`       is None, never AttributeError, in a thread that acquired nothing. Set by hand it
                    gives the lock object the lock with that token, as in redis-py.
Names and tokens    must be UTF-8: `holdfast.UsageError` otherwise. Names have at most 1024
                    characters; `timeout` is at most 30 days.
Other values        where the name holds no string but another kind of value, acquiring raises
                    `holdfast.UsageError` instead of taking it for a lock.

The holdfast client behind the locks is made once per redis-py client, with connections of its own,
and ends with it (for asyncio: with the event loop, if that ends first).
"""

from ._asyncio import AsyncRedisPyLock
from ._blocking import RedisPyLock

__all__ = ["AsyncRedisPyLock", "RedisPyLock"]
