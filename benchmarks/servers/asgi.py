"""What the bare ASGI apps of the benchmarks share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def run_lifespan(receive: Receive, send: Send) -> None:
    """Answer the two messages of a lifespan."""
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


async def read_body(receive: Receive) -> bytes:
    """Return the whole body of a request."""
    parts = []
    more = True
    while more:
        event = await receive()
        parts.append(event.get("body", b""))
        more = event.get("more_body", False)
    return b"".join(parts)
