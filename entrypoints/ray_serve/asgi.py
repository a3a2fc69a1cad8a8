"""The transport of a replica, in place of that of Serve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, Receive
from websockets.frames import CloseCode

from antiphon.entrypoints.http.api.requests import REQUEST_ID_HEADER

REQUEST_ID = REQUEST_ID_HEADER.encode()


class ServedByRay:
    """ASGI middleware, outside of all others.

    A request's body must arrive within `arrival_s`, and a WebSocket message may have `max_bytes`.
    `shut_down` is called at the end of the app's life. The app itself has been started already.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        arrival_s: float,
        max_bytes: int,
        shut_down: Callable[[], Awaitable[None]],
    ) -> None:
        self._app = app
        self._arrival_s = arrival_s
        self._max_bytes = max_bytes
        self._shut_down = shut_down

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._app(scope, self._receive_in_time(receive), _without_request_id(send))
        else:
            await self._app(scope, self._receive_small(receive, send), send)

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._shut_down()
        await send({"type": "lifespan.shutdown.complete"})

    def _receive_in_time(self, receive: Any) -> Receive:
        deadline = asyncio.get_running_loop().time() + self._arrival_s
        has_arrived = False

        async def receive_in_time() -> Any:
            nonlocal has_arrived
            if has_arrived:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                message = f"The request did not arrive within {self._arrival_s:g} seconds."
                raise HTTPException(message, status_code=408) from None
            has_arrived = not message.get("more_body", False)
            return message

        return receive_in_time

    def _receive_small(self, receive: Any, send: Any) -> Receive:
        async def receive_small() -> Any:
            message = await receive()
            if message["type"] != "websocket.receive" or self._is_small(message):
                return message
            reason = f"A message may have {self._max_bytes} bytes."
            code = CloseCode.MESSAGE_TOO_BIG
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return {"type": "websocket.disconnect", "code": code}

        return receive_small

    def _is_small(self, message: Any) -> bool:
        content = message.get("text") or message.get("bytes") or b""
        if isinstance(content, str) and not content.isascii():
            content = content.encode()
        return len(content) <= self._max_bytes


def _without_request_id(send: Any) -> Any:
    """Return a `send` that leaves out the id of the request: Serve's proxy adds the same one."""

    # Not a coroutine: each frame of a stream passes through here.
    def send_without_id(message: Any) -> Any:
        if message["type"] == "http.response.start":
            headers = [each for each in message["headers"] if each[0].lower() != REQUEST_ID]
            message = {**message, "headers": headers}
        return send(message)

    return send_without_id
