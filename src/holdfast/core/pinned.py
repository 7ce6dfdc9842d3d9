"""Objects that belong to one process and cannot travel."""

from __future__ import annotations

from typing import NoReturn


class Pinned:
    """Refuses to be pickled, with a reason; copying by `copy` refuses as well."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle {type(self).__name__}: it belongs to a client of this process. "
            "Send the lock's name, and make the lock there"
        )
