"""A real MCP server of the SDK as a program: on stdio, or with an HTTP transport and a port.

With the name of a function in `FAULTS` as its argument, it misbehaves in that way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any


def serve(transport: Any = "stdio", port: str = "0") -> None:
    global Context
    # Slow to import, and the faults do not need it.
    from mcp.server.mcpserver import Context, MCPServer

    server = MCPServer("test", instructions="Numbers are in meters.")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool()
    def large(count: int) -> str:
        return "x" * count

    @server.tool()
    def environment() -> str:
        return " ".join(sorted(os.environ))

    @server.tool()
    def process() -> int:
        return os.getpid()

    @server.tool()
    async def wait() -> str:
        await asyncio.Event().wait()
        return "late"

    @server.tool()
    async def hang() -> str:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)  # noqa: ASYNC251 - blocks every call of the process
        return "late"

    @server.tool()
    def complain(count: int) -> str:
        print("x" * count, file=sys.stderr)
        return "said"

    @server.tool()
    def babble() -> str:
        os.write(1, b"starting up...\n{}\n[1, 2\n\xff\xfe\n" + b"[" * 5000 + b"\n")
        return "said"

    @server.tool()
    async def learn(context: Context[Any, Any]) -> str:
        server.add_tool(lambda: "learned", name="learned")
        await context.session.send_tool_list_changed()
        return "said"

    @server.tool()
    def die() -> str:
        print(f"I die with {os.environ.get('SECRET')}", file=sys.stderr, flush=True)
        os._exit(3)

    @server.tool()
    def confess() -> str:
        message = f"no such key: {os.environ['SECRET']}"
        raise ValueError(message)

    @server.tool()
    def breed() -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    if transport == "stdio":
        server.run("stdio")
    else:
        server.run(transport, port=int(port))


def ends() -> None:
    print("no licence", file=sys.stderr)
    sys.exit(2)


def stay_silent() -> None:
    time.sleep(600)


def echo() -> None:
    for line in sys.stdin:
        print(line.upper(), flush=True)


def flood() -> None:
    os.write(1, b"x" * 3_000_000)
    sys.stdin.read()


def start_slowly() -> None:
    time.sleep(1)
    serve()


FAULTS = {fault.__name__: fault for fault in (start_slowly, ends, stay_silent, echo, flood)}


if __name__ == "__main__":
    FAULTS[sys.argv[1]]() if sys.argv[1:2] and sys.argv[1] in FAULTS else serve(*sys.argv[1:])
