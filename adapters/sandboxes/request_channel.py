"""Requests to a process in a sandbox, and its answers, none of which the server trusts.

A message is the length of its head and of its body, four bytes each, then the head, which is JSON,
and the body, which is bytes. Code in a sandbox can write to the channel too, so an answer may be
anything: its head is small, its body has at most the bytes that the request allows, and everything
else is an error, found before it is read.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from antiphon.domain.errors import SandboxError
from antiphon.domain.json import Json

MAX_HEAD_BYTES = 256 * 1024
MAX_IMAGES = 100
MAX_FILES = 1000
PROCESS_ENDED = "The code ended its process, or reached a resource limit."

_Size = Annotated[int, Meta(ge=0, le=2**53)]


class AnswerHead(Struct, frozen=True, kw_only=True):
    """The head of any answer; a field that the request did not ask for has no meaning."""

    error: Annotated[str, Meta(max_length=4096)] | None = None
    is_ready: bool = False
    is_error: bool = True
    image_sizes: Annotated[tuple[_Size, ...], Meta(max_length=MAX_IMAGES)] = ()
    """The images in the body, one after the other, by their bytes."""

    files: Annotated[tuple[tuple[str, _Size, _Size], ...], Meta(max_length=MAX_FILES)] = ()
    """The path, bytes and modification time of each."""

    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None


class Answer(Struct, frozen=True):
    head: AnswerHead
    body: bytes = b""


class RequestChannel:
    """The requests to one process and its answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def on(cls, connected_socket: socket.socket) -> RequestChannel:
        """Return a channel on a duplicate of the socket."""
        connected_socket.setblocking(False)
        return cls(*await asyncio.open_connection(sock=connected_socket.dup()))

    async def ask(self, request: Json, body: bytes = b"", *, max_body_bytes: int = 0) -> Answer:
        """Send a request and return its answer. Raises: SandboxError."""
        head = msgspec.json.encode(request)
        with suppress(ConnectionError):
            self._writer.writelines([_length(head), _length(body), head, body])
            await self._writer.drain()
        return await self.receive(max_body_bytes=max_body_bytes)

    async def receive(self, *, max_body_bytes: int = 0) -> Answer:
        """Return the next answer. Raises: SandboxError."""
        try:
            head_bytes, body_bytes = [await self._receive_length() for _ in range(2)]
            if head_bytes > MAX_HEAD_BYTES or body_bytes > max_body_bytes:
                raise SandboxError("The container gave an answer that is too long.")
            head = msgspec.json.decode(await self._reader.readexactly(head_bytes), type=AnswerHead)
            return Answer(head, await self._reader.readexactly(body_bytes))
        except (EOFError, ConnectionError):
            raise SandboxError(PROCESS_ENDED) from None
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise SandboxError("The container gave an invalid answer.") from None

    async def _receive_length(self) -> int:
        return int.from_bytes(await self._reader.readexactly(4), "big")

    def close(self) -> None:
        self._writer.close()


def _length(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big")
