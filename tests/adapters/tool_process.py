"""A real MCP server of the SDK, run as a program: on stdio, or with a transport of HTTP and a port.

With the argument `NAME` it does something that a server should not: see `ODD`.
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
    from mcp.server.mcpserver import MCPServer  # what is no server need not wait for it

    server = MCPServer("test")

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
        time.sleep(600)  # noqa: ASYNC251 - no call of it answers any more
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


def is_silent() -> None:
    time.sleep(600)


def is_none() -> None:
    for line in sys.stdin:
        print(line.upper(), flush=True)


def floods() -> None:
    os.write(1, b"x" * 3_000_000)
    sys.stdin.read()


def is_slow() -> None:
    time.sleep(1)
    serve()


ODD = {each.__name__: each for each in (is_slow, ends, is_silent, is_none, floods)}


if __name__ == "__main__":
    ODD[sys.argv[1]]() if sys.argv[1:2] and sys.argv[1] in ODD else serve(*sys.argv[1:])
