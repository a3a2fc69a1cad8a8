"""Summaries of reasoning: written by the model in a short turn of their own
(docs/reference/api.md#reasoning)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import ModelTurn, Sampling, Turn
from antiphon.domain import deltas as d
from antiphon.domain.errors import AntiphonError
from antiphon.domain.items import Message
from antiphon.domain.tools import ToolChoice
from antiphon.domain.usage import TurnUsage

logger = logging.getLogger("antiphon.runs")

Begin = Callable[[Turn], Awaitable[ModelTurn]]

LENGTHS = {
    "auto": "one or two sentences",
    "concise": "one or two sentences",
    "detailed": "one short paragraph a step, each under a short bold title",
}
LONGEST = {"auto": 256, "concise": 256, "detailed": 1024}
"""Tokens of a summary."""


class SummarizedTurn(TurnWrapper):
    """A turn whose reasoning is followed by its summary, in the same item.

    The summary is written as soon as the thought has ended, before what follows it is passed on:
    the item is then still open. A model that summarises by itself is not asked again.
    """

    def __init__(
        self, inner: ModelTurn, turn: Turn, begin: Begin, *, length: str, effort: str | None
    ) -> None:
        super().__init__(inner)
        self._turn = turn
        self._begin = begin
        self._length = length
        self._effort = effort
        self._thought: list[str] = []
        self._usage: list[TurnUsage] = []

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                passed: list[d.Delta] = []
                for delta in deltas:
                    if self._ends_thought(delta):
                        if passed:
                            yield passed
                            passed = []
                        async for written in self._summary():
                            yield [written]
                    if isinstance(delta, d.TurnEnd):
                        passed.append(replace(delta, other_usages=tuple(self._usage)))
                    else:
                        passed.append(delta)
                yield passed

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [*super().tokens_used(), *self._usage]

    def _ends_thought(self, delta: d.Delta) -> bool:
        """Note what is thought. Returns whether a thought is complete before this delta."""
        if isinstance(delta, d.ReasoningDelta):
            self._thought.append(delta.text)
            return False
        if isinstance(delta, d.SummaryDelta) or _cuts(delta):
            self._thought.clear()
        return bool(self._thought)

    async def _summary(self) -> AsyncGenerator[d.Delta]:
        thought = "".join(self._thought)
        self._thought.clear()
        if not thought.strip():
            return
        try:
            turn = await self._begin(self._asking(thought))
            async with aclosing(aiter(turn)) as batches:
                async for deltas in batches:
                    for delta in deltas:
                        if isinstance(delta, d.TextDelta):
                            yield d.SummaryDelta(delta.text)
                        elif isinstance(delta, d.TurnEnd):
                            self._usage.append(delta.usage)
        except AntiphonError as exc:
            # The answer is worth more than its summary; an engine that died will say so itself.
            logger.warning("a summary of reasoning could not be written: %s", exc)

    def _asking(self, thought: str) -> Turn:
        text = (
            f"Summarise these thoughts in {LENGTHS[self._length]}, in the first person and in "
            "their own language, for a reader who sees only your summary. Write nothing else."
            f"\n\n{thought}"
        )
        asker = self._turn
        return Turn(
            model=asker.model,
            items=[Message(role="user", content=text)],
            choice=ToolChoice(mode="none"),
            effort=self._effort,
            truncate=True,
            sampling=Sampling(
                max_tokens=LONGEST[self._length], step_tokens=asker.sampling.step_tokens
            ),
            priority=asker.priority,
            cache_salt=asker.cache_salt,
            trace_headers=asker.trace_headers,
        )


def _cuts(delta: d.Delta) -> bool:
    return isinstance(delta, d.TurnEnd) and delta.reason != "stop"
