"""The time limit of a web search or of reading a page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from antiphon.domain.errors import WebError


@asynccontextmanager
async def time_limit(timeout_s: float) -> AsyncGenerator[None]:
    """Cancel the body after `timeout_s`. Raises: WebError."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise WebError(f"It took more than {timeout_s:g} seconds.") from None
