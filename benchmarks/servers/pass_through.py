"""A proxy that passes the bytes of a model server on without a look: the least a gateway can do.

BENCH_UPSTREAM=http://127.0.0.1:8001 uvicorn benchmarks.servers.pass_through:app
"""

from __future__ import annotations

import os

import aiohttp

from benchmarks.servers.asgi import Message, Receive, Send, read_body

URL = f"{os.environ['BENCH_UPSTREAM']}/v1/chat/completions"
JSON = {"content-type": "application/json"}


class PassThrough:
    """Sends each request to the model server, whatever its path."""

    _session: aiohttp.ClientSession

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["method"] != "POST":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body = await read_body(receive)
        async with self._session.post(URL, data=body, headers=JSON) as answer:
            headers = [(b"content-type", answer.headers["content-type"].encode())]
            start = {"type": "http.response.start", "status": answer.status, "headers": headers}
            await send(start)
            async for data in answer.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._session.close()
        await send({"type": "lifespan.shutdown.complete"})


app = PassThrough()
