"""Targets: what `connect()` accepts, turned into deployments.

A URL, a client of redis-py or valkey-py (standalone, made by Sentinel, cluster), or several of them
for a quorum. Only the form is checked here; nothing is sent.
"""

from __future__ import annotations

import inspect
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel

from ..errors import UsageError
from .endpoint import Endpoint
from .topology import Cluster, Deployment

_SCHEMES = (
    "redis://host:6379/0, rediss://…, unix:///path.sock, valkey://…, "
    "redis+sentinel://host:26379,host/service/0, redis+cluster://host:7000,host, or embedded:"
)


def deployment(target: object, *, asynchronous: bool) -> Deployment:
    """The deployment that a URL or a client stands for."""
    if isinstance(target, str):
        return _from_url(target, asynchronous)
    return _from_client(target, asynchronous)


def independent(members: list[Deployment], *, guarded: bool) -> list[Deployment]:
    """Several deployments as a quorum; refused where they cannot be independent of each other."""
    names = [member.name for member in members]
    if len(members) < 2:
        raise UsageError(
            f"{names!r}: a quorum has at least two primaries; give one target as it is"
        )
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{name} is given {names.count(name)} times: one server cannot vote twice"
            )
    for member in members:
        if member.is_cluster:
            raise UsageError(
                f"{member.name}: a cluster is one deployment and cannot vote in a quorum; "
                "give standalone primaries or Sentinel services"
            )
        member.seed.identified = guarded
        member.seed.members = [other.seed for other in members]
    return members


# ── URLs ───────────────────────────────────────────────────────────────────────────────────────


def _from_url(url: str, asynchronous: bool) -> Deployment:
    scheme, found, rest = url.partition("://")
    if not found:
        raise UsageError(f"{url!r} is not a server URL; one of {_SCHEMES}")
    scheme = scheme.lower().replace("valkeys", "rediss").replace("valkey", "redis")
    base, _, kind = scheme.partition("+")
    if base not in {"redis", "rediss", "unix"} or kind not in {"", "sentinel", "cluster"}:
        raise UsageError(f"{url!r} has an unknown scheme; one of {_SCHEMES}")
    if kind == "sentinel":
        return _sentinel(base, rest, asynchronous, url)
    if kind == "cluster":
        hosts, path, kwargs = _hosts(base, rest, 6379, url)
        if path.strip("/") not in {"", "0"}:
            raise UsageError(f"{url!r}: a cluster has only database 0")
        connection_class = _module(asynchronous)[1 if base == "rediss" else 0]
        return Cluster([Endpoint(connection_class, {**kwargs, **where}) for where in hosts])
    parse: Any = (redis.asyncio if asynchronous else redis).connection.parse_url
    try:
        options: dict[str, Any] = dict(parse(f"{scheme}://{rest}"))
    except ValueError as error:
        raise UsageError(f"{url!r} cannot be read: {error}") from error
    _check_database(options.get("db", 0), url)
    connection_class = options.pop("connection_class", _module(asynchronous)[0])
    return Deployment(Endpoint(connection_class, options))


def _check_database(db: object, url: str) -> None:
    if isinstance(db, int) and db < 0:
        raise UsageError(f"{url!r}: the database number is negative")


def _module(asynchronous: bool) -> tuple[type[Any], type[Any]]:
    where = redis.asyncio.connection if asynchronous else redis.connection
    return where.Connection, where.SSLConnection


def _hosts(
    base: str, rest: str, default_port: int, url: str
) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
    """`user:password@host:port,host:port/path?options`, of which urlsplit knows one host only."""
    where, _, query = rest.partition("?")  # first: its values may contain slashes
    authority, _, path = where.partition("/")
    credentials, at, addresses = authority.rpartition("@")
    hosts: list[dict[str, Any]] = []
    for address in addresses.split(","):
        try:
            parts = urlsplit(f"//{address}")
            port = parts.port or default_port
        except ValueError as error:
            raise UsageError(f"{url!r}: {address!r} is not host:port ({error})") from error
        if not parts.hostname:
            raise UsageError(f"{url!r} names no host; write host:port,host:port")
        hosts.append({"host": parts.hostname, "port": port})
    # The client library knows which options there are, and of what type.
    parse: Any = redis.connection.parse_url
    options: dict[str, Any] = dict(
        parse(f"{base}://x/0{'?' + query if query else ''}")
        if dict(parse_qsl(query, strict_parsing=bool(query)))
        else {}
    )
    for name in ("host", "port", "db", "connection_class"):
        options.pop(name, None)
    if at:
        user, _, password = credentials.partition(":")
        options.update({"username": unquote(user) or None, "password": unquote(password) or None})
    return hosts, path, options


def _sentinel(base: str, rest: str, asynchronous: bool, url: str) -> Deployment:
    hosts, path, kwargs = _hosts(base, rest, 26379, url)
    service, _, db = path.strip("/").partition("/")
    if not service or not (db or "0").isdigit():
        raise UsageError(
            f"{url!r} must name the service: redis+sentinel://host:26379,host/service/0"
        )
    addresses = [(where["host"], where["port"]) for where in hosts]
    make: Any = redis.asyncio.sentinel if asynchronous else redis.sentinel
    # Our own connections have their timeout from us; the questions to Sentinel have it from here.
    sentinel = make.Sentinel(addresses, sentinel_kwargs={"socket_timeout": 1.0, "retry": None})
    client = sentinel.master_for(unquote(service), db=int(db or 0), ssl=base == "rediss", **kwargs)
    found = _from_client(client, asynchronous)
    found.seed.sentinels = sentinel.sentinels
    return found


# ── clients ────────────────────────────────────────────────────────────────────────────────────


def _from_client(client: Any, asynchronous: bool) -> Deployment:
    kind = type(client)
    module = kind.__module__.partition(".")[0]
    mro = {base.__name__ for base in kind.__mro__}
    if not {"Redis", "Valkey", "RedisCluster", "ValkeyCluster"} & mro:
        raise UsageError(
            f"cannot connect to {client!r}: give a URL ({_SCHEMES}) "
            "or a client of redis-py or valkey-py"
        )
    is_async = inspect.iscoroutinefunction(getattr(kind, "execute_command", None))
    if is_async != asynchronous:
        ours, theirs = ("aio.connect", "asyncio") if is_async else ("connect", "blocking")
        raise UsageError(
            f"{module}'s {kind.__name__} is {'an' if is_async else 'a'} {theirs} client: "
            f"use holdfast.{ours}()"
        )
    if {"RedisCluster", "ValkeyCluster"} & mro:
        return _from_cluster(client, asynchronous)
    pool = client.connection_pool
    return Deployment(Endpoint(pool.connection_class, pool.connection_kwargs, owner=pool))


def _from_cluster(client: Any, asynchronous: bool) -> Deployment:
    manager = client.nodes_manager
    kwargs = dict(client.connection_kwargs if asynchronous else manager.connection_kwargs)
    kwargs.pop("redis_connect_func", None)  # sends READONLY where replicas are read
    tls = bool(kwargs.pop("ssl", False))
    connection_class = kwargs.pop("connection_class", None)
    if connection_class is None:
        package = __import__(type(client).__module__.partition(".")[0])
        base = package.asyncio.connection if asynchronous else package.connection
        connection_class = base.SSLConnection if tls else base.Connection
    accepted = inspect.signature(connection_class.__init__).parameters
    known = set(accepted)
    for parent in connection_class.__mro__:
        known |= set(inspect.signature(parent.__init__).parameters)
    kwargs = {key: value for key, value in kwargs.items() if key in known}
    kwargs.pop("db", None)
    nodes = list(manager.nodes_cache.values()) or list(manager.startup_nodes.values())
    return Cluster(
        [
            Endpoint(
                connection_class,
                {**kwargs, "host": node.host, "port": int(node.port)},
            )
            for node in nodes
        ]
    )
