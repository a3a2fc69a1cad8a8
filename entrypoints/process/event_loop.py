"""The event loop of a server."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from antiphon.application.support.fair_loop import FairLoop


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a fair loop on uvloop, or on asyncio's loop where uvloop does not exist."""
    loop: asyncio.AbstractEventLoop = _loop_class()()
    return loop


@cache
def _loop_class() -> Any:
    base: Any
    try:
        from uvloop import Loop as base  # noqa: N813
    except ImportError:  # not on Windows
        from asyncio import SelectorEventLoop as base  # noqa: N813
    return type("Loop", (FairLoop, base), {})
