"""Many requests at a time, each over a connection of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec

LONGEST_S = 120.0


class Answer(msgspec.Struct):
    """`first_byte_s` and `total_s` are counted from when the request was sent."""

    status: int
    first_byte_s: float
    total_s: float
    text: str


async def send(port: int, body: Mapping[str, Any], *, key: str = "", sent_at: float = 0) -> Answer:
    """Send a request and read its whole answer. `sent_at` is when it was due."""
    sent_at = sent_at or time.perf_counter()
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        "content-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    async with asyncio.timeout(LONGEST_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        try:
            writer.write(head.encode() + content)
            status_line = await reader.readline()
            first_byte_s = time.perf_counter() - sent_at
            rest = await reader.read()
        finally:
            writer.transport.abort()
    return Answer(
        status=int(status_line.split()[1]),
        first_byte_s=first_byte_s,
        total_s=time.perf_counter() - sent_at,
        text=rest.decode(errors="replace"),
    )


async def send_at_rate(
    port: int, body: Mapping[str, Any], *, per_s: float, duration_s: float, key: str = ""
) -> list[Answer]:
    """Send requests at this rate, however slowly they are answered; return all answers."""
    started_at = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        sent = []
        for number in range(int(per_s * duration_s)):
            due = started_at + number / per_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent.append(tasks.create_task(send(port, body, key=key, sent_at=due)))
    return [task.result() for task in sent]
