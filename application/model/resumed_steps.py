"""The steps of a turn that another server has begun: what it wrote, then what the engine writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.ports import Step, Steps, WrittenPart

STEPS_AT_ONCE = 128
"""Steps that are repeated before other tasks may run: they take some 1 ms."""


class ResumedSteps(Steps):
    """Repeats the steps that were `written`, then reads `live`; None if the turn is whole."""

    def __init__(self, written: WrittenPart, live: Steps | None = None) -> None:
        self._written = written.steps
        self.input_tokens = written.input_tokens
        self.written_tokens = len(token_ids_of(written.steps))
        self.live = live
        self._steps = self._iterate()

    def __aiter__(self) -> AsyncIterator[Step]:
        return self._steps

    async def aclose(self) -> None:
        await self._steps.aclose()
        if self.live is not None:
            await self.live.aclose()

    async def _iterate(self) -> AsyncGenerator[Step]:
        for number, step in enumerate(self._written, 1):
            yield step
            if number % STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if self.live is None:
            return
        # What is cached of the prompt now tells nothing of how the turn began.
        cached_tokens = self._written[-1].cached_tokens
        async with aclosing(self.live):
            async for step in self.live:
                yield replace(step, cached_tokens=cached_tokens)


def token_ids_of(steps: Sequence[Step]) -> list[int]:
    return [token_id for step in steps for token_id in step.token_ids]
