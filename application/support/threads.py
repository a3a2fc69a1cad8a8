"""Long work without waiting: given a thread, so that other requests have their turn meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONG_BYTES = 256 * 1024
"""Some 3 ms of reading JSON; a thread costs a tenth of one."""


async def run_in_thread(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `work(*args)`; where `size`, in bytes, is much, other tasks run in between.

    A thread does not make it faster: the interpreter changes between threads every few
    milliseconds, which is what the others need.
    """
    if size < LONG_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
