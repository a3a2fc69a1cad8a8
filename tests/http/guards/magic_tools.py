"""Tools: one says the word that the guards of the tests look for, one what it is told."""

from __future__ import annotations

from tests.http.odd_tools import OddTools

from antiphon.application.ports import Json, ToolResult, ToolSession


class MagicTools(OddTools):
    def session(self) -> ToolSession:
        return _Session()


class _Session(ToolSession):
    async def tools(self) -> tuple[Json, ...]:
        return ({"name": "say"}, {"name": "echo"})

    async def call(self, name: str, arguments: Json) -> ToolResult:
        if name == "echo":
            return ToolResult(output=str(arguments.get("echo")))
        return ToolResult(output="The word is xyzzy.")

    async def aclose(self) -> None:
        pass
