"""Endpoints: how to open a connection to one server, taken from a URL or from a user's client.

redis-py (or valkey-py) knows TLS, ACLs, credential providers, unix sockets and Sentinel. An
endpoint keeps its connection class and arguments, minus those that would act behind our back
(retries, decoding, health checks).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


class Endpoint:
    """One server (or one Sentinel service) and everything needed to connect to it."""

    __slots__ = (
        "_connection_class",
        "_kwargs",
        "_owner",
        "identified",
        "managed",
        "name",
        "resp3",
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
