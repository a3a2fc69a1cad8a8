"""The event loop of a server."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop, or asyncio's where uvloop does not exist."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # not on Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = new_event_loop()
    return loop
