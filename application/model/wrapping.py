"""A turn around another one: what it does not change, it hands on."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.application.ports import Json, ModelTurn
from antiphon.domain.items import Item
from antiphon.domain.usage import TurnUsage


class TurnWrapper(ModelTurn):
    """Base of such turns, which say for themselves what they yield of the `inner` one."""

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


class HiddenTurn(TurnWrapper):
    """A turn of which the client sees nothing as the model wrote it: no prompt will repeat it."""

    def record_items(self, items: Sequence[Item]) -> None:
        pass
