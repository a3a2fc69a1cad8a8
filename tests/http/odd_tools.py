"""Tools that do not do what tools should, for the tests of budgets: a class for `--tool`."""

from __future__ import annotations

import asyncio

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession


class OddTools(ToolServer):
    label = "odd"

    def session(self) -> ToolSession:
        return _Session()

    async def aclose(self) -> None:
        pass


class _Session(ToolSession):
    async def tools(self) -> tuple[Json, ...]:
        return tuple({"name": name} for name in ("say", "hang", "boom"))

    async def call(self, name: str, arguments: Json) -> ToolResult:
        if name == "hang":
            await asyncio.Event().wait()
        if name == "boom" and "error" in arguments:
            return ToolResult(error=arguments["error"])
        if name == "boom":
            raise RuntimeError(name)
        return ToolResult(output="word " * int(arguments.get("words", 1)))

    async def aclose(self) -> None:
        pass


class CarefulTools(OddTools):
    label = "careful"

    def __init__(self) -> None:
        self.require_approval = {"never": {"tool_names": ["say"]}}


class UndecidedTools(OddTools):
    label = "undecided"
    require_approval = "sometimes"
