"""One command, one reply, over a unix socket: all that starting and emptying a server needs."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import BinaryIO, TypeAlias

from holdfast.errors import NodeError

Reply: TypeAlias = "str | int | list[Reply] | None"
"""What `Server.command` returns: strings decoded as UTF-8, lists nested."""


class RefusedError(NodeError):
    """The server's answer was an error; the message is what it said."""


def ask(path: Path, words: tuple[str | bytes | int | float, ...], timeout: float) -> Reply:
    """Send one command and return its reply.

    Raises `RefusedError` when the server answers with an error, OSError when it cannot be reached
    or does not answer in time (`timeout` seconds for each read).
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        sock.connect(str(path))
        sock.sendall(_pack(words))
        with sock.makefile("rb") as stream:
            return _read(stream)


def _pack(words: tuple[str | bytes | int | float, ...]) -> bytes:
    out = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(out)


def _read(stream: BinaryIO) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection before it answered")
    kind, text = line[:1], line[1:-2].decode(errors="replace")
    if kind == b"-":
        raise RefusedError(text, sent=True)
    if kind == b":":
        return int(text)
    if kind == b"$":
        size = int(text)
        return None if size < 0 else stream.read(size + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return None if text == "-1" else [_read(stream) for _ in range(int(text))]
    return text
