"""Work of a tool for one response: done within its budgets, whatever does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext

import msgspec
from msgspec import Struct

from antiphon.application.tools.budgets import Budgets
from antiphon.domain import deltas as d

logger = logging.getLogger("antiphon.tools")

BROKEN = "This call failed: what runs it has a defect."

Given = AsyncGenerator[Sequence[d.Delta]]
"""What a call gives while it runs, a batch at a time: the first batches end the item of the call,
items of its own may follow."""


class Work(Struct, frozen=True):
    """A call or a listing that may be run: what it gives, and what is given for it when it breaks:
    `cut`, once it has given something. It waits for its `place` first.
    """

    given: Given
    refused: Callable[[str], Sequence[d.Delta]]
    cut: Callable[[str], Sequence[d.Delta]] = lambda _: [d.ItemEnd()]
    place: AbstractAsyncContextManager[object] = nullcontext()


def has_ended(batch: Sequence[d.Delta]) -> Work:
    """Return work that is done already."""
    return Work(_one(batch), lambda _: batch)


async def _one(batch: Sequence[d.Delta]) -> Given:
    yield batch


class RunningWork:
    """Work that is done within its budgets; what it gives waits until it is read."""

    def __init__(self, work: Work, budgets: Budgets) -> None:
        self._work = work
        self._budgets = budgets
        self._given: asyncio.Queue[Sequence[d.Delta] | None] = asyncio.Queue()
        self._gave = False
        self._task = asyncio.create_task(self._run())

    async def __aiter__(self) -> Given:
        while (batch := await self._given.get()) is not None:
            yield batch

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with self._work.place:
                why = await self._done()
            if why is not None:
                ended = self._work.cut if self._gave else self._work.refused
                self._given.put_nowait(ended(why))
        finally:
            self._given.put_nowait(None)

    async def _done(self) -> str | None:
        """Do the work in a task of its own, which might not heed being stopped. Returns what broke
        it."""
        doing = asyncio.create_task(self._do())
        try:
            in_time, _ = await asyncio.wait({doing}, timeout=self._budgets.call_s)
        finally:
            doing.cancel()
            _, stuck = await asyncio.wait({doing}, timeout=self._budgets.stopping_s)
            if stuck:
                logger.error("a call of a tool could not be stopped: %r", doing)
        if not in_time:
            return f"This call was stopped: it took more than {self._budgets.call_s:g} seconds."
        if doing.cancelled():
            logger.error("a call of a tool broke: it cancelled itself")
            return BROKEN
        return doing.result()

    async def _do(self) -> str | None:
        left = self._budgets.call_bytes
        try:
            async with aclosing(self._work.given) as given:
                async for batch in given:
                    left -= sum(len(msgspec.json.encode(each)) for each in batch)
                    if left < 0:
                        return f"This call gave more than {self._budgets.call_bytes} bytes."
                    self._gave = True
                    self._given.put_nowait(batch)
        except (Exception, SystemExit):  # whatever a tool raises: no tool ends the server
            logger.exception("a call of a tool broke")
            return BROKEN
        return None
