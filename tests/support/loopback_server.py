"""A server on loopback that notes who came, for what may reach the network, and what may not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PIECE = b"x" * 65536


class LoopbackServer:
    """A server on loopback that notes who came.

    `answers` are bytes, head and all, by target or by path. Those of a path `/hang…` do not end,
    and those of `/endless` go on for as long as somebody reads them.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.endless_bytes = 0
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            if length := re.search(r"content-length: ([0-9]+)", head):
                self.bodies.append(await reader.readexactly(int(length[1])))
            target = head.split(" ")[1]
            path = target.partition("?")[0]
            nothing = answer(b"", status="404 Not Found")
            writer.write(self.answers.get(target, self.answers.get(path, nothing)))
            await writer.drain()
            while path.startswith("/endless"):
                writer.write(PIECE)
                await writer.drain()
                self.endless_bytes += len(PIECE)
            if path.startswith("/hang"):
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def redirect(to: str) -> bytes:
    return answer(b"", f"location: {to}", status="302 Found")


def chunked(*chunks: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


@asynccontextmanager
async def listening() -> AsyncIterator[LoopbackServer]:
    """Yield a sink that listens until the block is left."""
    sink = LoopbackServer()
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0)
    sink.port = server.sockets[0].getsockname()[1]
    async with server:
        yield sink
