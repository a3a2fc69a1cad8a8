"""Keeps connections busy with the same requests: `python attacker.py HOST PORT REQUESTS`.

It is a process of its own with a low priority, so that its work delays neither the server nor the
client that a test watches: as if it were another machine. REQUESTS is a JSON file, see `Attack`.
For each line on its standard input it starts, or closes all connections and prints how many answers
of each status it has read since it started.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

Attack = dict[str, Any]
NICENESS = 4


async def attack(host: str, port: int, each: Attack, statuses: Counter[str]) -> None:
    """Send a request over one connection, again and again unless it is to be sent once."""
    sent = 0
    while not (each["once"] and sent):
        with suppress(OSError, EOFError):  # closed by the server, perhaps as one too many
            reader, writer = await asyncio.open_connection(host, port)
            try:
                while not (each["once"] and sent):
                    writer.write(base64.b64decode(each["request"]))
                    statuses[await read_answer(reader)] += 1
                    sent += 1
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.05)


async def read_answer(reader: asyncio.StreamReader) -> str:
    """Read a whole answer, and return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"\r\ncontent-length: " in head:
        left = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        while left:
            part = await reader.read(left)
            if not part:
                raise EOFError
            left -= len(part)
    else:
        await reader.readuntil(b"\r\n0\r\n\r\n")
    return head[9:12].decode()


async def main(host: str, port: int, attacks: list[Attack]) -> None:
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        statuses: Counter[str] = Counter()
        tasks = [
            asyncio.create_task(attack(host, port, each, statuses))
            for each in attacks
            for _ in range(each["connections"])
        ]
        await loop.run_in_executor(None, sys.stdin.readline)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    os.nice(NICENESS)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())))
