"""A turn in which the model compacts the conversation: its text becomes one sealed item."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.model.wrapping import HiddenTurn
from antiphon.application.ports import ModelTurn, Sampling, Turn
from antiphon.domain import deltas as d
from antiphon.domain.compaction import REQUEST, text_to_seal
from antiphon.domain.errors import EngineError
from antiphon.domain.items import Item, Message
from antiphon.domain.response import TextConfig
from antiphon.domain.tools import ToolChoice

MAX_SUMMARY_TOKENS = 4096
"""Tokens, its reasoning included: enough for a long task, and a bound on what a request costs."""


def compaction_of(turn: Turn) -> Turn:
    """Return the turn that summarises what `turn` would answer.

    Its prompt begins as that of `turn` does, tools included though none may be called: the engine
    has most of it in its cache. What does not fit is dropped, oldest first: a conversation that is
    too long is the reason to compact it.
    """
    asked = Message(role="user", content=REQUEST)
    return replace(
        turn,
        items=[*turn.items, asked],
        choice=ToolChoice(names=frozenset()),
        text=TextConfig(),
        truncate=True,
        sampling=Sampling(
            temperature=turn.sampling.temperature,
            top_p=turn.sampling.top_p,
            seed=turn.sampling.seed,
            max_tokens=MAX_SUMMARY_TOKENS,
            step_tokens=turn.sampling.step_tokens,
        ),
    )


class CompactingTurn(HiddenTurn):
    """Reads the summary of `items` that a turn writes, and yields the item that holds it."""

    def __init__(self, inner: ModelTurn, items: Sequence[Item], seal: Callable[[str], str]) -> None:
        super().__init__(inner)
        self._items = items
        self._seal = seal

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        text: list[str] = []
        yield [
            d.ToolStart("compaction", {"encrypted_content": ""}),
            d.ToolProgress("compacting"),
        ]
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                text += [delta.text for delta in deltas if isinstance(delta, d.TextDelta)]
                if deltas and isinstance(deltas[-1], d.TurnEnd):
                    # A summary that was cut is still one: the client would only lose more.
                    yield [self._item("".join(text)), replace(deltas[-1], reason="stop")]

    def _item(self, summary: str) -> d.Delta:
        if not summary.strip():
            raise EngineError("The model wrote no summary of the conversation.")
        sealed = self._seal(text_to_seal(summary.strip(), self._items))
        return d.ToolEnd("completed", {"encrypted_content": sealed})
