"""Warm-up: a turn that only puts its prompt into the engine's cache
(docs/reference/api.md#warm-up)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.model.wrapping import HiddenTurn
from antiphon.application.ports import Json, Turn, TurnFacts
from antiphon.domain.deltas import Delta, TurnEnd
from antiphon.domain.responses.usage import TurnUsage


def shortest_turn(turn: Turn) -> Turn:
    """Return the turn with a single token to generate: without any, engines cache no prompt."""
    return replace(turn, sampling=replace(turn.sampling, max_tokens=1))


class WarmUpTurn(HiddenTurn):
    """A turn without the model's output: it yields only its end."""

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                if deltas and isinstance(deltas[-1], TurnEnd):
                    yield [TurnEnd("stop", _without_output(deltas[-1].usage))]

    def messages(self) -> tuple[list[Json], list[Json]]:
        input_messages, _ = super().messages()
        return input_messages, []

    def facts(self) -> TurnFacts:
        return replace(super().facts(), kind="warm_up")

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [_without_output(usage) for usage in super().tokens_used()]


def _without_output(usage: TurnUsage) -> TurnUsage:
    return replace(usage, output=0, reasoning=0)
