"""A client in a process of its own, to be frozen while it holds a lock: `python frozen.py ...`.

Prints its fence once it holds. Told to go on by a line on its stdin, it prints whether the hold
knows that it is lost, tries to write with its old fence, and prints whether that was accepted.
"""

from __future__ import annotations

import asyncio
import sys

import holdfast
import holdfast.aio
from tests.support.ledger import Ledger


def blocking(urls: list[str], name: str, ledger: str) -> None:
    with holdfast.connect(urls) as hf:
        hold = hf.lock(name, lease=1, on_lost="ignore").acquire(wait=5)
        print(hold.fence, flush=True)
        sys.stdin.readline()
        print(hold.is_lost(), Ledger(ledger).write("frozen", hold.fence), flush=True)


async def asynchronous(urls: list[str], name: str, ledger: str) -> None:
    async with holdfast.aio.connect(urls) as hf:
        hold = await hf.lock(name, lease=1, on_lost="ignore").acquire(wait=5)
        print(hold.fence, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(hold.is_lost(), Ledger(ledger).write("frozen", hold.fence), flush=True)


if __name__ == "__main__":
    colour, name, ledger, *urls = sys.argv[1:]
    if colour == "blocking":
        blocking(urls, name, ledger)
    else:
        asyncio.run(asynchronous(urls, name, ledger))
