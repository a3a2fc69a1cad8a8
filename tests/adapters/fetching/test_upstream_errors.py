"""The error of a model server is read within limits, however slowly it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from antiphon.adapters.upstreams.client import MAX_ERROR_BYTES, UpstreamClient, UpstreamRefused
from antiphon.adapters.upstreams.options import UpstreamOptions

HEAD = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 100000000\r\n\r\n"


@asynccontextmanager
async def client_of_a_server_that_fails_with(body: bytes) -> AsyncIterator[UpstreamClient]:
    """Yield the client of a server whose error begins with `body` and never ends."""

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + body)
        with suppress(ConnectionError):
            await reader.read()  # until the client leaves
        writer.transport.abort()
        is_over.set()

    is_over = asyncio.Event()
    server = await asyncio.start_server(fail, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = UpstreamClient(f"http://127.0.0.1:{port}/v1", UpstreamOptions())
    await client.start()
    try:
        yield client
    finally:
        await client.aclose()
        await is_over.wait()
        server.close()


@pytest.mark.parametrize("body", [b'{"error": ', b"x" * (MAX_ERROR_BYTES + 1)])
async def test_an_error_that_never_ends_is_cut(body: bytes) -> None:
    async with client_of_a_server_that_fails_with(body) as client:
        with pytest.raises(UpstreamRefused) as refused:
            await client.stream("/chat/completions", b"")
    assert (refused.value.status, refused.value.body) == (500, body[:MAX_ERROR_BYTES])
