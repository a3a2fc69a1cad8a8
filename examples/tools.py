"""Your own tools, run by the server: convert lengths between units.

    $ antiphon serve --tool examples.tools:Lengths

Requests then name {"type": "mcp", "server_label": "lengths"} in their tools. The tools run in the
server's process, so long work must await, or run in a thread (asyncio.to_thread).
"""

from __future__ import annotations

from typing import Any

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession

METRES = {"m": 1.0, "km": 1000.0, "ft": 0.3048, "mi": 1609.344}
UNIT = {"type": "string", "enum": list(METRES)}

CONVERT = {
    "name": "convert",
    "description": "Convert a length from one unit into another.",
    "input_schema": {
        "type": "object",
        "properties": {"value": {"type": "number"}, "unit": UNIT, "into": UNIT},
        "required": ["value", "unit", "into"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True},
}


class Lengths(ToolServer):
    label = "lengths"

    def session(self) -> ToolSession:
        return LengthsSession()

    async def aclose(self) -> None:
        """Close what the sessions share, for example a connection pool."""


class LengthsSession(ToolSession):
    async def tools(self) -> tuple[Json, ...]:
        return (CONVERT,)

    async def call(self, name: str, arguments: Json) -> ToolResult:
        if name != "convert":
            return failed(f"There is no tool {name!r}.")
        try:
            return ToolResult(output=converted(**arguments))
        except (TypeError, KeyError):  # a model wrote them, so anything may be wrong
            return failed(f"These are not valid arguments for convert: {arguments!r}.")

    async def aclose(self) -> None:
        """Close what this session opened."""


def converted(value: float, unit: str, into: str) -> str:
    return f"{value * METRES[unit] / METRES[into]:g} {into}"


def failed(why: str) -> ToolResult:
    error: dict[str, Any] = {"type": "mcp_tool_execution_error", "content": why}
    return ToolResult(error=error)
