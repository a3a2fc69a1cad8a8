"""Run long synchronous work in a thread, so that it does not block other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MIN_THREAD_BYTES = 256 * 1024
"""Decoding this much JSON takes about 3 ms; starting a thread costs about 0.1 ms."""


async def run_in_thread(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `work(*args)`; run it in a thread if `size`, in bytes, is large.

    A thread does not make it faster, but the interpreter switches threads every few milliseconds,
    so other tasks can run.
    """
    if size < MIN_THREAD_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
