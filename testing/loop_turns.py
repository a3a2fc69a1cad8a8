"""Whether others could run while a test waited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LoopTurns:
    """How many turns another task of the event loop has had."""

    count = 0


@asynccontextmanager
async def count_turns() -> AsyncIterator[LoopTurns]:
    """Count the turns of the event loop inside the block."""
    turns = LoopTurns()

    async def count() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counting.cancel()
