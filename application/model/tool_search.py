"""Tool searches that the server runs between two turns of the model
(docs/reference/api.md#tool-search)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec

from antiphon.application.ports import Json, ModelTurn, TurnFacts
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.tools import AnyTool


def tool_searches_in(items: Sequence[i.AnyItem]) -> list[i.ToolSearchCall]:
    """Return the searches that the server runs."""
    return [
        item
        for item in items
        if isinstance(item, i.ToolSearchCall)
        and item.execution == "server"
        and item.status == "completed"
    ]


class ToolSearchTurn(ModelTurn):
    """Yields an item with the results of each search in the turn `after`, without a model."""

    def __init__(self, results: Sequence[Sequence[AnyTool]], *, after: ModelTurn) -> None:
        self._results = results
        self._after = after

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        deltas: list[d.Delta] = []
        for tools in self._results:
            fields = {"tools": tuple(msgspec.to_builtins(tools)), "execution": "server"}
            deltas += (d.ToolStart("tool_search_output", fields), d.ItemEnd())
        yield [*deltas, d.TurnEnd("stop", TurnUsage())]

    def facts(self) -> TurnFacts:
        return TurnFacts(kind="tool_search")

    async def aclose(self) -> None:
        pass

    def messages(self) -> tuple[list[Json], list[Json]]:
        return self._after.messages()
