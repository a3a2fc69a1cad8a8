"""Compaction: a turn in which the model summarizes the conversation into one sealed item."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.model.wrapping import HiddenTurn
from antiphon.application.ports import ModelTurn, Sampling, Turn, TurnFacts
from antiphon.domain import deltas as d
from antiphon.domain.errors import EngineError
from antiphon.domain.history.compaction import REQUEST, text_to_seal
from antiphon.domain.items import Item, Message
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import ToolChoice

MAX_SUMMARY_TOKENS = 4096
"""Includes the reasoning. Enough for a long task, and a limit on the cost of a request."""


def compaction_of(turn: Turn) -> Turn:
    """Return the turn that summarizes the conversation that `turn` would answer.

    Its prompt begins like that of `turn`, so most of it is in the engine's cache. For that it keeps
    the tools, although the model may not call them. The oldest items are dropped if the prompt is
    too long, since that is the usual reason to compact.
    """
    request = Message(role="user", content=REQUEST)
    return replace(
        turn,
        items=[*turn.items, request],
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
    """Reads the summary of `items` that the model writes and yields a compaction item with it."""

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
                    # A summary that was cut off is better for the client than none.
                    yield [self._end_item("".join(text)), replace(deltas[-1], reason="stop")]

    def facts(self) -> TurnFacts:
        return replace(super().facts(), kind="compaction")

    def _end_item(self, summary: str) -> d.Delta:
        if not summary.strip():
            raise EngineError("The model wrote no summary of the conversation.")
        sealed = self._seal(text_to_seal(summary.strip(), self._items))
        return d.ToolEnd("completed", {"encrypted_content": sealed})
