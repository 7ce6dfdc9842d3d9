"""Key names: every key of one object lives in one cluster slot, and is named here.

The lock itself stands at exactly the name that the user gave, so that other libraries exclude us.
"""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache

from ..errors import UsageError

SLOTS = 16384
LONGEST_NAME = 1024
# One for each node, not for each lock: several independent primaries are never clusters.
GUARD = "holdfast:guard"


def hash_tag(key: str) -> str | None:
    """The part of `key` that decides its slot, or None if the whole key does."""
    start = key.find("{")
    if start < 0:
        return None
    end = key.find("}", start + 1)
    return key[start + 1 : end] if end > start + 1 else None


def slot(key: str) -> int:
    """The cluster slot of a key (CRC16/XMODEM of its tag, modulo 16384)."""
    return crc_hqx((hash_tag(key) or key).encode(), 0) % SLOTS


@lru_cache(maxsize=4096)
def _stem(name: str) -> str:
    tag = hash_tag(name)
    if tag is not None:
        # "{x}" must not share the helpers of "x", which are at "{x}:".
        return f"{name}/" if name == f"{{{tag}}}" else f"{name}:"
    if "}" not in name:
        return f"{{{name}}}:"
    # A name such as "a}b" has no tag, and braces around it would make one of its first half. Some
    # small number hashes to the same slot; finding it costs milliseconds, once per such name.
    wanted = slot(name)
    number = next(n for n in range(SLOTS * 64) if crc_hqx(b"%d" % n, 0) % SLOTS == wanted)
    return f"{{{number}}}:{name}:"


def aux(name: str, part: str) -> str:
    """The name of a helper key of `name`, in the same slot."""
    return _stem(name) + part


def checked_name(name: object, what: str = "lock") -> str:
    """`name` itself, or a UsageError that says what is wrong with it."""
    if not isinstance(name, str):
        raise UsageError(f"{what} name must be a str, not {type(name).__name__}: {name!r}")
    if not name:
        raise UsageError(f"{what} name must not be empty")
    if len(name) > LONGEST_NAME:
        raise UsageError(
            f"{what} name has {len(name)} characters; at most {LONGEST_NAME} are allowed: "
            f"{name[:40]!r}…"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} name cannot be encoded as UTF-8: {name!r}") from None
    return name
