"""A tool with an effect that can be counted: it notes in a file what it was called with."""

from __future__ import annotations

import os
from pathlib import Path

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession

NOTES = "NOTES_FILE"
"""The variable with the path of the file."""


def tool(name: str, **annotations: bool) -> Json:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": name, "input_schema": schema, "annotations": annotations}


class Notes(ToolServer):
    """`note` must not run twice; `read` may."""

    label = "notes"

    def session(self) -> ToolSession:
        return NotesSession()

    async def aclose(self) -> None: ...


def note(line: str) -> None:
    with Path(os.environ[NOTES]).open("a", encoding="utf-8") as notes:
        notes.write(line)


class NotesSession(ToolSession):
    async def tools(self) -> tuple[Json, ...]:
        return tool("note"), tool("read", readOnlyHint=True)

    async def call(self, name: str, arguments: Json) -> ToolResult:
        note(f"{name} {arguments['text']}\n")
        return ToolResult(output=f"{name}: {arguments['text']}")

    async def aclose(self) -> None: ...
