"""Turns that wrap another turn and pass on everything that they do not change."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.application.ports import Json, ModelTurn, TurnFacts, TurnTranscript
from antiphon.domain.items import Item
from antiphon.domain.responses.usage import TurnUsage


class TurnWrapper(ModelTurn):
    """Base of turns that wrap the `inner` turn. A subclass implements the iteration."""

    def __init__(self, inner: ModelTurn) -> None:
        self._inner = inner

    async def aclose(self) -> None:
        await self._inner.aclose()

    def record_items(self, items: Sequence[Item]) -> None:
        self._inner.record_items(items)

    def messages(self) -> tuple[list[Json], list[Json]]:
        return self._inner.messages()

    def tokens_used(self) -> Sequence[TurnUsage]:
        return self._inner.tokens_used()

    @property
    def counts_tokens(self) -> bool:
        return self._inner.counts_tokens

    def facts(self) -> TurnFacts:
        return self._inner.facts()

    def transcript(self) -> TurnTranscript | None:
        return self._inner.transcript()


class HiddenTurn(TurnWrapper):
    """A turn whose text the client never sees as the model wrote it, so no prompt repeats it."""

    def record_items(self, items: Sequence[Item]) -> None:
        pass
