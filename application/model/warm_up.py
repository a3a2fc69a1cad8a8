"""Warm up: a turn that leaves its prompt in the engine's cache and nothing else
(docs/reference/api.md#warm-up)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.model.wrapping import HiddenTurn
from antiphon.application.ports import Json, Turn
from antiphon.domain.deltas import Delta, TurnEnd
from antiphon.domain.usage import TurnUsage


def shortest_turn(turn: Turn) -> Turn:
    """Return the turn with the fewest tokens to generate: an engine caches no prompt for none."""
    return replace(turn, sampling=replace(turn.sampling, max_tokens=1))


class WarmUp(HiddenTurn):
    """A turn of which nobody sees what the model wrote: its end is all that is left."""

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                if deltas and isinstance(deltas[-1], TurnEnd):
                    yield [TurnEnd("stop", _of_prompt(deltas[-1].usage))]

    def messages(self) -> tuple[list[Json], list[Json]]:
        given, _ = super().messages()
        return given, []

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [_of_prompt(usage) for usage in super().tokens_used()]


def _of_prompt(usage: TurnUsage) -> TurnUsage:
    return replace(usage, output=0, reasoning=0)
