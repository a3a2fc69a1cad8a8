"""A tool server inside a server under test: it counts the tasks of the server's event loop."""

from __future__ import annotations

import asyncio

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession


class LoopTasks(ToolServer):
    label = "loop"

    def session(self) -> ToolSession:
        return CountTasks()


class CountTasks(ToolSession):
    async def tools(self) -> tuple[Json, ...]:
        return ({"name": "tasks", "input_schema": {"type": "object"}},)

    async def call(self, _name: str, _arguments: Json) -> ToolResult:
        return ToolResult(output=str(len(asyncio.all_tasks())))

    async def aclose(self) -> None:
        pass
