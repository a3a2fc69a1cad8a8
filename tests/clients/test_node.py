"""The clients for Node: each file of node/ is a suite of its own, run by node's test runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_mcp_server import FakeMcpServer

from .conftest import INSTALLED, Run

SUITES = sorted((Path(__file__).parent / "node").glob("*.test.mjs"))


@pytest.mark.clients
@pytest.mark.timeout(90)
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name.split(".")[0])
def test_the_suite_passes(run_node: Run, node: str, server: Any, model: str, suite: Path) -> None:
    if not (INSTALLED / "openai").exists():
        pytest.skip("the clients for Node are not installed: make test-clients does it")
    told = {"ANTIPHON_URL": server.api, "ANTIPHON_MODEL": model}
    assert "fail 0" in run_node(node, "--test", "--test-reporter=spec", suite, **told)


@pytest.mark.clients
@pytest.mark.timeout(90)
def test_a_strict_schema_takes_the_tools_that_an_mcp_server_lists(
    run_node: Run, node: str, serve: Any, model: str
) -> None:
    if not (INSTALLED / "ai").exists():
        pytest.skip("the clients for Node are not installed: make test-clients does it")
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    site = FakeMcpServer()
    try:
        with serve(**allowed) as server:
            urls = {"ANTIPHON_URL": server.api, "ANTIPHON_MCP_URL": site.url}
            ran = run_node(node, "node/mcp.mjs", ANTIPHON_MODEL=model, **urls)
    finally:
        site.close()
    assert "passed" in ran
