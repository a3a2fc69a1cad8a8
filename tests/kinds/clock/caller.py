"""The clock of one response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.domain.kinds.clock import Clock

from antiphon.application.tools.calls import SingleItemCaller, ToolCaller
from antiphon.application.tools.hosted import ToolProvider
from antiphon.domain import deltas as d
from antiphon.domain.items import AnyItem
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.tools import RequestTool, parse_arguments

TIMES = {"Oslo": "12:34", "Lima": "06:34"}


class ClockProvider(ToolProvider):
    """Provides each response with the caller for its clock."""

    tool_types = ("clock",)

    def handles(self, tool: RequestTool) -> bool:
        return isinstance(tool, Clock)

    async def callers(
        self, tools: Sequence[ToolDefinition], conversation: Sequence[AnyItem], *, tenant: str
    ) -> Mapping[str, ToolCaller]:
        clock = tools[-1].tool
        assert isinstance(clock, Clock)
        return {"clock": ClockCaller(clock.source)}


class ClockCaller(SingleItemCaller):
    """Reads the clock."""

    step = "reading"

    def __init__(self, source: str) -> None:
        self._source = source

    def open_item(self, start: d.CallStart) -> d.Delta:
        return d.ToolStart("clock_call")

    async def run(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        place = str((parse_arguments(arguments) or {}).get("place"))
        time = TIMES.get(place, "unknown")
        return d.ToolEnd("completed", {"place": place, "time": time, "source": self._source})

    def refusal_of(self, reason: str) -> d.ToolEnd:
        return d.ToolEnd("failed", {"time": reason})
