"""Work that does not end with its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def start_shared_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work for all callers: it is of no request and no tenant, whoever started it."""
    return asyncio.create_task(work, context=Context())


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, however often the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()
