"""Reasoning summaries, which the model writes in short turns of their own
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
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.tools import ToolChoice

logger = logging.getLogger("antiphon.runs")

StartTurn = Callable[[Turn], Awaitable[ModelTurn]]

LENGTHS = {
    "auto": "one or two sentences",
    "concise": "one or two sentences",
    "detailed": "one short paragraph a step, each under a short bold title",
}
REQUEST = "Summarise these thoughts in "
MAX_TOKENS = {"auto": 256, "concise": 256, "detailed": 1024}
"""Tokens of a summary, by its length."""


class SummarizedTurn(TurnWrapper):
    """A turn whose reasoning is followed by its summary, in the same item.

    The summary is written as soon as the reasoning ends and before the next delta passes through,
    while the item is still open. A model that writes its own summaries is not asked for another.
    """

    def __init__(
        self,
        inner: ModelTurn,
        turn: Turn,
        start_turn: StartTurn,
        *,
        length: str,
        effort: str | None,
    ) -> None:
        super().__init__(inner)
        self._turn = turn
        self._start_turn = start_turn
        self._length = length
        self._effort = effort
        self._reasoning: list[str] = []
        self._usage: list[TurnUsage] = []

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                ready: list[d.Delta] = []
                for delta in deltas:
                    if self._ends_reasoning(delta):
                        if ready:
                            yield ready
                            ready = []
                        async for summary_delta in self._summarize():
                            yield [summary_delta]
                    if isinstance(delta, d.TurnEnd):
                        ready.append(replace(delta, other_usages=tuple(self._usage)))
                    else:
                        ready.append(delta)
                yield ready

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [*super().tokens_used(), *self._usage]

    def _ends_reasoning(self, delta: d.Delta) -> bool:
        """Collect the reasoning. Return whether it is complete before this delta."""
        if isinstance(delta, d.ReasoningDelta):
            self._reasoning.append(delta.text)
            return False
        if isinstance(delta, d.SummaryDelta) or _cuts_off(delta):
            self._reasoning.clear()
        return bool(self._reasoning)

    async def _summarize(self) -> AsyncGenerator[d.Delta]:
        reasoning = "".join(self._reasoning)
        self._reasoning.clear()
        if not reasoning.strip():
            return
        try:
            summary_turn = await self._start_turn(self._summary_turn(reasoning))
            async with aclosing(aiter(summary_turn)) as batches:
                async for deltas in batches:
                    for delta in deltas:
                        if isinstance(delta, d.TextDelta):
                            yield d.SummaryDelta(delta.text)
                        elif isinstance(delta, d.TurnEnd):
                            self._usage.append(delta.usage)
        except AntiphonError as exc:
            # The answer matters more than its summary; an engine that died fails the answer too.
            logger.warning("a reasoning summary could not be written: %s", exc)

    def _summary_turn(self, reasoning: str) -> Turn:
        text = (
            f"{REQUEST}{LENGTHS[self._length]}, in the first person and in "
            "their own language, for a reader who sees only your summary. Write nothing else."
            f"\n\n{reasoning}"
        )
        turn = self._turn
        return Turn(
            model=turn.model,
            items=[Message(role="user", content=text)],
            choice=ToolChoice(mode="none"),
            effort=self._effort,
            truncate=True,
            sampling=Sampling(
                max_tokens=MAX_TOKENS[self._length], step_tokens=turn.sampling.step_tokens
            ),
            priority=turn.priority,
            tenant=turn.tenant,
            cache_salt=turn.cache_salt,
            trace_headers=turn.trace_headers,
        )


def thoughts_in(text: str) -> str | None:
    """Return the thoughts that this text asks a model to summarize; None if it asks for nothing
    like that."""
    asked, _, thoughts = text.partition("\n\n")
    return thoughts if asked.startswith(REQUEST) else None


def _cuts_off(delta: d.Delta) -> bool:
    return isinstance(delta, d.TurnEnd) and delta.reason != "stop"
