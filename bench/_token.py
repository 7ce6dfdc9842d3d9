"""The hand-over floor: a token in a list, passed on by the server's own queue of BLPOP."""

from __future__ import annotations

import socket
from typing import Any

import hiredis


class TokenClient:
    """One raw socket."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)

    def ask(self, *command: str) -> Any:
        """One command and its reply."""
        self._socket.sendall(hiredis.pack_command(command))
        while (reply := self._reader.gets()) is Ellipsis:
            self._reader.feed(self._socket.recv(4096))
        return reply

    def lock(self, name: str) -> TokenLock:
        """A token of that name; the first who comes puts it there."""
        if self.ask("SET", f"{name}:made", "1", "NX") is not None:
            self.ask("LPUSH", name, "token")
        return TokenLock(self, name)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class TokenLock:
    """Whoever has the token holds the lock."""

    def __init__(self, client: TokenClient, name: str) -> None:
        self._client = client
        self._name = name

    def acquire(self) -> None:
        """Wait for the token."""
        self._client.ask("BLPOP", self._name, "0")

    def release(self) -> None:
        """Put it back."""
        self._client.ask("LPUSH", self._name, "token")
