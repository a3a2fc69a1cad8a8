"""The deadlines for tokens: only the engine's time counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import AsyncGeneratorType

import pytest

from antiphon.application.model.stalls import StallWatch, TokenDeadlines
from antiphon.domain.errors import EngineError

DEADLINES = TokenDeadlines(first_token_s=0.1, between_tokens_s=0.1)


class Turn:
    """A turn of two tokens; the second comes after `pause`."""

    def __init__(self, pause: asyncio.Event) -> None:
        self._pause = pause
        self._count = 0
        tokens = self._generate()
        assert isinstance(tokens, AsyncGeneratorType)
        self._watch = StallWatch(tokens, DEADLINES, lambda: self._count)
        self.tokens = tokens

    async def _generate(self) -> AsyncGenerator[int]:
        with self._watch:
            self._count += 1
            yield 1
            await self._pause.wait()
            self._count += 1
            yield 2


async def test_an_engine_that_stalls_raises_an_engine_error() -> None:
    async with aclosing(Turn(asyncio.Event()).tokens) as tokens:
        assert await anext(tokens) == 1
        with pytest.raises(EngineError, match=r"no token for 0\.1 seconds"):
            await anext(tokens)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_reader_that_takes_its_time_is_no_stall() -> None:
    pause = asyncio.Event()
    pause.set()
    async with aclosing(Turn(pause).tokens) as tokens:
        assert await anext(tokens) == 1
        await asyncio.sleep(0.3)  # several deadlines
        assert await anext(tokens) == 2


async def test_a_cancellation_by_others_stays_one() -> None:
    turn = Turn(asyncio.Event())
    reading = asyncio.create_task(anext(turn.tokens))
    assert await reading == 1
    reading = asyncio.create_task(anext(turn.tokens))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
