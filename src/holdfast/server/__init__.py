"""Real Valkey and Redis servers for development and tests, without containers.

    with Server() as server:                 # the newest binary at hand, a free port, no files kept
        connect(server.url)

A server started here dies with the process that started it, however that process ends, and takes
its temporary folder with it. It listens on 127.0.0.1 and on a unix socket only, and keeps no data
unless asked to. This is not a way to run a server in production.
"""

from holdfast.server._find import ServerBinary, binary_at, find_servers, newest
from holdfast.server._ports import free_port
from holdfast.server._resp import Reply
from holdfast.server._server import Server
from holdfast.server._shared import acquire_shared, release_shared

__all__ = [
    "Reply",
    "Server",
    "ServerBinary",
    "acquire_shared",
    "binary_at",
    "find_servers",
    "free_port",
    "newest",
    "release_shared",
]
