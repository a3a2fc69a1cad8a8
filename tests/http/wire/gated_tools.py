"""A tool that returns when its test says so: a class for `--tool`."""

from __future__ import annotations

import asyncio
import threading

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession

STARTED, GATE = threading.Event(), threading.Event()
"""The server of the test is a thread of this process."""


class GatedTools(ToolServer):
    label = "gated"

    def session(self) -> ToolSession:
        return _Session()

    async def aclose(self) -> None:
        pass


class _Session(ToolSession):
    async def tools(self) -> tuple[Json, ...]:
        return ({"name": "wait"},)

    async def call(self, name: str, arguments: Json) -> ToolResult:
        del name, arguments
        STARTED.set()
        assert await asyncio.to_thread(GATE.wait, 30)
        return ToolResult(output="it is open")

    async def aclose(self) -> None:
        pass
