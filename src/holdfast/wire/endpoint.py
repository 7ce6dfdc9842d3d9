"""Endpoints: how to open a connection to one server, taken from a URL or from a user's client.

redis-py (or valkey-py) knows TLS, ACLs, credential providers, unix sockets and Sentinel. An
endpoint keeps its connection class and arguments, minus those that would act behind our back
(retries, decoding, health checks).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import NodeError

# Retries would re-send; decoding and parsing are ours; the rest belongs to the user's own pool.
_NOT_OURS = frozenset(
    {
        "retry",
        "retry_on_error",
        "retry_on_timeout",
        "parser_class",
        "decode_responses",
        "health_check_interval",
        "himport_registry",
        "event_dispatcher",
        "oss_cluster_maint_notifications_handler",
        "connection_class",
        "max_connections",
        "cache",
        "cache_config",
        "read_from_replicas",
        "legacy_responses",
        "command_packer",
    }
)


# A connection whose server has gone silent takes no new work; for so long it stays, because who
# closes it has the server lose what it has not read yet: the acquire was read, its undo was not.
RETIREMENT_S = 3.0
# When a client is closed, those servers that nobody waited for are given so long to read the rest.
SETTLE_S = 0.2

_LASTING = {
    "AuthenticationError",
    "AuthenticationWrongNumberOfArgsError",
    "AuthorizationError",
    "NoPermissionError",
}


class Endpoint:
    """One server (or one Sentinel service) and everything needed to connect to it."""

    __slots__ = (
        "_connection_class",
        "_kwargs",
        "_owner",
        "identified",
        "managed",
        "members",
        "name",
        "resp3",
        "run_id",
        "sentinels",
    )

    def __init__(
        self, connection_class: type[Any], kwargs: Mapping[str, Any], *, owner: object = None
    ) -> None:
        self._connection_class = connection_class
        self._kwargs = {
            key: value
            for key, value in kwargs.items()
            if key not in _NOT_OURS and not key.startswith(("maint", "orig_"))
        }
        # Sentinel pools are known to their connections by weak reference only.
        self._owner = owner
        # A user's `protocol=2` is kept: some proxies speak nothing else.
        self.resp3 = str(self._kwargs.get("protocol", 3)) != "2"
        self._kwargs["protocol"] = 3 if self.resp3 else 2
        # Sentinel decides where to connect each time; the address is not ours to change.
        self.managed = "connection_pool" in self._kwargs
        self.name = self._describe()
        # Whether connections ask for the server's run id when they are opened.
        self.identified = False
        self.run_id = ""
        # The other endpoints of its quorum.
        self.members: Sequence[Endpoint] = ()
        # Sentinel clients of our own, whose connections end when the primary is found: they are
        # needed again only after a failover, perhaps in another event loop or a forked child.
        self.sentinels: list[Any] = []

    def _describe(self) -> str:
        kwargs = self._kwargs
        if self.managed:
            return f"sentinel:{getattr(self._owner, 'service_name', '?')}"
        if "path" in kwargs:
            return f"unix:{kwargs['path']}"
        return f"{self.host}:{self.port}"

    @property
    def host(self) -> str:
        return str(self._kwargs.get("host", "localhost"))

    @property
    def port(self) -> int:
        return int(self._kwargs.get("port", 6379))

    def at(self, host: str, port: int) -> Endpoint:
        """The same way of connecting, to another member of the cluster."""
        return Endpoint(
            self._connection_class, {**self._kwargs, "host": host, "port": port}, owner=self._owner
        )

    def met(self, run_id: str) -> None:
        """Note which server answers here. It must not be one that votes under another name."""
        # Written before the others are read: of two that connect at once one at least sees it.
        self.run_id = run_id
        for other in self.members:
            if other is not self and other.run_id == run_id:
                self.run_id = ""
                message = (
                    f"{self.name} is the same server as {other.name}, and cannot vote twice: "
                    "it counts as a node that is down"
                )
                warnings.warn(message, RuntimeWarning, stacklevel=2)
                raise NodeError(message, node=self.name, sent=False, transient=False)

    def unreachable(self, error: Exception) -> NodeError:
        """What to raise where no connection could be opened."""
        if isinstance(error, NodeError):
            return error
        # By name: redis-py and valkey-py have classes of their own. Waiting does not mend these.
        lasting = not _LASTING.isdisjoint(kind.__name__ for kind in type(error).__mro__)
        what = "refuses the user, its password or its rights" if lasting else "cannot be reached"
        return NodeError(
            f"{self.name} {what}: {error}", node=self.name, sent=False, transient=not lasting
        )

    def connection(self, timeout: float) -> Any:
        """A connection object of the user's client library, not connected yet."""
        return self._connection_class(
            **{
                **self._kwargs,
                "socket_timeout": timeout,
                "socket_connect_timeout": timeout,
                "retry_on_error": [],
                "decode_responses": False,
            }
        )
