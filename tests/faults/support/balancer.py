"""A tiny load balancer: it passes bytes on, to servers that say they are ready."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

CHECK_S = 0.1
"""Between two checks of a server."""

CHUNK = 65_536
READY = b"GET /readyz HTTP/1.1\r\nhost: balancer\r\nconnection: close\r\n\r\n"


class Balancer:
    """Gives each connection to the next server that was ready a moment ago."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._ready: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = count()
        self.port = 0

    async def run(self, started: threading.Event, stop: asyncio.Event) -> None:
        """Serve until `stop` is set."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._tasks |= {asyncio.create_task(self._check(port)) for port in self._ports}
        started.set()
        await stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self, port: int) -> None:
        while True:
            is_ready = False
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    is_ready = await _is_ready(port)
            self._ready.discard(port)
            if is_ready:
                self._ready.add(port)
            await asyncio.sleep(CHECK_S)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = sorted(self._ready or self._ports)
        first = next(self._numbers)
        for offset in range(len(ready)):
            with suppress(OSError):
                port = ready[(first + offset) % len(ready)]
                answers, requests = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            writer.close()
            return
        try:
            await asyncio.gather(_copy(reader, requests), _copy(answers, writer))
        finally:
            requests.close()
            writer.close()
            with suppress(OSError):
                await asyncio.gather(requests.wait_closed(), writer.wait_closed())


async def _is_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(READY)
        return b" 200 " in await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass all bytes on, and then the end."""
    with suppress(OSError):
        while part := await reader.read(CHUNK):
            writer.write(part)
            await writer.drain()
    writer.close()


@contextmanager
def balancing(*ports: int) -> Iterator[int]:
    """Balance between the servers on these ports inside the block, and yield its own port."""
    balancer = Balancer(ports)
    started, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())
        await balancer.run(started, stop)

    thread = threading.Thread(target=asyncio.run, args=(work(),), name="balancer")
    thread.start()
    try:
        assert started.wait(10)
        yield balancer.port
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(timeout=10)
