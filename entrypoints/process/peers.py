"""How the workers of a server ask each other: one that is asked for the server's numbers asks all.

Each worker listens on a Unix socket in a folder that only the server's user can open. A question is
a line with a topic; the answer is all that follows, and the connection closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

logger = logging.getLogger("antiphon.workers")

ANSWER_S = 2.5
"""How long a worker has to answer. One that is starting, or busy, is left out."""
MAX_TOPIC_BYTES = 100

Answer = Callable[[], Awaitable[bytes]]


class Peers:
    """The workers of this server, of which this process is `number`, from 1 to `count`."""

    def __init__(self, folder: Path, *, number: int, count: int) -> None:
        self.folder = folder
        self.number = number
        self._sockets = {each: folder / f"{each}.sock" for each in range(1, count + 1)}
        self._answers: dict[str, Answer] = {}
        self._server: asyncio.Server | None = None

    def offer(self, topic: str, answer: Answer) -> None:
        """Answer this topic from now on."""
        self._answers[topic] = answer

    async def start(self) -> None:
        """Listen."""
        socket = self._sockets[self.number]
        socket.unlink(missing_ok=True)  # of a worker with this number that was killed
        self._server = await asyncio.start_unix_server(self._answer, socket, limit=MAX_TOPIC_BYTES)

    async def aclose(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._sockets[self.number].unlink(missing_ok=True)

    async def ask_all(self, topic: str) -> Mapping[int, bytes]:
        """Return what each worker answers, by its number: this one, and all that answer in time."""
        others = [number for number in self._sockets if number != self.number]
        own, *answers = await asyncio.gather(
            self._answers[topic](), *(self._ask(number, topic) for number in others)
        )
        found = zip(others, answers, strict=True)
        return {self.number: own, **{number: answer for number, answer in found if answer}}

    async def _ask(self, number: int, topic: str) -> bytes:
        """Return the answer of a worker, or nothing."""
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._sockets[number])
                try:
                    writer.write(topic.encode() + b"\n")
                    return await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            logger.debug("worker %d does not answer %r: %r", number, topic, error)
            return b""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                topic = (await reader.readline()).decode().strip()
                writer.write(await self._answers[topic]())
                await writer.drain()
        except Exception as error:  # the asker does without it
            logger.debug("a worker was not answered: %r", error)
        finally:
            writer.close()
