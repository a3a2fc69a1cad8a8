"""A real MCP server of the SDK, on any transport, that dies in some of its calls.

    python hour_tools.py TRANSPORT PORT SEED NOTES

`note_…` must not run twice, `read_…` may. Each writes what it was called with into the file NOTES.
Whether a call ends the process, before or after it was noted, depends on SEED and its text alone.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Literal

DEATHS = 0.02
"""The share of the calls that end the process; as many again end it after they were noted."""
SLOWEST_S = 0.5
"""The time of the slowest call; for the others it is less, evenly."""


def serve(transport: Any, port: int, seed: str, notes: Path) -> None:
    from mcp.server.mcpserver import MCPServer  # slow to import
    from mcp_types import ToolAnnotations

    server = MCPServer("hour", log_level="CRITICAL")

    def run(kind: Literal["note", "read"], text: str) -> str:
        chance = random.Random(f"{seed} {text}").random()
        time.sleep(chance * SLOWEST_S)
        if chance < DEATHS:
            os._exit(3)
        with notes.open("a", encoding="utf-8") as file:
            file.write(f"{kind} {text}\n")
        if chance < 2 * DEATHS:
            os._exit(4)
        return f"{kind}: {text}"

    short = transport.partition("-")[0]

    @server.tool(f"note_{short}")
    def note(text: str) -> str:
        return run("note", text)

    @server.tool(f"read_{short}", annotations=ToolAnnotations(read_only_hint=True))
    def read(text: str) -> str:
        return run("read", text)

    if transport == "stdio":
        server.run("stdio")
    else:
        server.run(transport, port=port)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
