"""`holdfast serve`: real servers in the foreground, for trying things out."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from typing import Annotated, NoReturn

import typer

from holdfast.cli._ending import Asked, fail, heed_signals
from holdfast.errors import HoldfastError
from holdfast.server import Server, ServerBinary, binary_at, find_servers, newest


def serve(
    count: Annotated[int, typer.Option(min=1, max=100, help="How many servers to start.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="First port; by default each takes a free one."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help='"valkey", "redis", or the path of a server binary.', metavar="WHICH"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON instead of the URLs.")
    ] = False,
) -> None:
    """Start real servers, print their URLs, and run until Ctrl-C.

    They listen on 127.0.0.1 only, keep no data, and end with this command, however it ends.
    """
    if port is not None and port + count - 1 > 65_535:
        raise typer.BadParameter(f"{count} ports from {port} on go beyond 65535")
    heed_signals()
    try:
        with ExitStack() as stack:
            servers: list[Server] = []
            for index in range(count):
                wanted = None if port is None else port + index
                servers.append(stack.enter_context(Server(_choose(server), port=wanted)))
            _show(servers, as_json)
            _watch(servers)
    except Asked:
        pass
    except HoldfastError as error:
        fail(str(error), 1)


def _choose(which: str | None) -> ServerBinary:
    try:
        if which is None:
            return newest()
        if which not in ("valkey", "redis"):
            return binary_at(os.path.expanduser(which))
    except HoldfastError as error:
        fail(str(error), 2)
    found = find_servers()
    for binary in found:
        if binary.flavour == which:
            return binary
    labels = ", ".join(binary.label for binary in found) or "none"
    return fail(f"there is no {which} server on this machine (found: {labels})", 2)


def _show(servers: list[Server], as_json: bool) -> None:
    if as_json:
        print(json.dumps([_facts(server) for server in servers]), flush=True)
    elif sys.stdout.isatty():
        _table(servers)
    else:
        print("\n".join(server.url for server in servers), flush=True)


def _facts(server: Server) -> dict[str, object]:
    return {
        "url": server.url,
        "unix_url": server.unix_url,
        "port": server.port,
        "pid": server.pid,
        "server": server.binary.label,
    }


def _table(servers: list[Server]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("URL", "unix socket", "server", "pid")
    for server in servers:
        table.add_row(server.url, str(server.socket), server.binary.label, str(server.pid))
    console = Console()
    console.print(table)
    console.print("Ctrl-C stops " + ("it." if len(servers) == 1 else "them."), style="dim")


def _watch(servers: list[Server]) -> NoReturn:
    while True:
        for server in servers:
            if not server.running:
                fail(f"the server at {server.url} has ended; its log:\n{server.log()}", 1)
        time.sleep(0.25)
