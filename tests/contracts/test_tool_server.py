"""Every tool server passes the contract: in this process, in a separate one, and remote."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer

from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.tool_servers.in_process import LimitedServer
from antiphon.adapters.tool_servers.mcp import UrlServer
from antiphon.adapters.tool_servers.process import ProcessServer
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.application.ports import ToolServer
from antiphon.testing.tool_server import ToolServerContract

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "adapters" / "tool_process.py"
ADD = ("add", {"a": 2, "b": 40})
LIMITS: dict[str, Any] = {"timeout_s": 30.0, "max_bytes": 100_000}


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> ToolServer:
    monkeypatch.syspath_prepend(str(ROOT))
    server: ToolServer = importlib.import_module("examples.tools").Lengths()
    return server


class TestTheExample(ToolServerContract):
    working_call = ("convert", {"value": 5, "unit": "km", "into": "m"})

    @pytest.fixture
    async def server(self, lengths: ToolServer) -> ToolServer:
        return lengths


class TestTheExampleWithinLimits(ToolServerContract):
    working_call = TestTheExample.working_call

    @pytest.fixture
    async def server(self, lengths: ToolServer) -> ToolServer:
        return LimitedServer(lengths, "mine", **LIMITS)


class TestALocalServer(ToolServerContract):
    working_call = ADD

    @pytest.fixture
    async def server(self) -> AsyncIterator[ToolServer]:
        server = ProcessServer("calc", [sys.executable, str(PROGRAM)], env={}, **LIMITS)
        yield server
        await server.aclose()


class TestARemoteServer(ToolServerContract):
    working_call = ADD

    @pytest.fixture
    async def server(self, remote: int) -> ToolServer:
        here = UrlPolicy(hosts=["127.0.0.1:*"], private=[ipaddress.ip_network("127.0.0.1")])
        url = f"http://127.0.0.1:{remote}/mcp"
        return UrlServer("calc", url=url, headers={}, pools=GuardedPools(here), **LIMITS)


@pytest.fixture
async def remote() -> AsyncIterator[int]:
    """Yield the port of a real server."""
    server = MCPServer("test")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    running.should_exit = True
    running.force_exit = True
    await task


async def test_the_example_converts(lengths: ToolServer) -> None:
    session = lengths.session()
    given = {"value": 1, "unit": "mi", "into": "km"}
    assert (await session.call("convert", given)).output == "1.60934 km"


def test_the_launcher_becomes_the_program_and_ends_with_its_parent() -> None:
    launch = ROOT / "adapters" / "tool_servers" / "launch.py"

    def launched(parent: int, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", launch, str(parent), *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )

    done = launched(os.getpid(), "echo", "$HOME", "; ls")
    assert (done.returncode, done.stdout) == (0, "$HOME ; ls\n")  # no shell has read them
    none = launched(os.getpid(), "/no/such/program", "secret")
    assert (none.returncode, "secret" in none.stderr) == (127, False)
    assert launched(1, "echo", "late").stdout == ""
