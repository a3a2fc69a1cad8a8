"""A configured MCP server whose token each tenant brings: it is used for nobody else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script, wait_until
from tests.support.fake_mcp_server import FakeMcpServer

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key

Json = dict[str, Any]

TOKENS = {"one": "token-of-one-1f7a", "two": "token-of-two-9c3e"}
OPERATORS = "token-of-the-operator"
ROUNDS = 4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sites() -> Iterator[dict[str, FakeMcpServer]]:
    sites = {name: FakeMcpServer() for name in ("crm", "wiki")}
    yield sites
    for site in sites.values():
        site.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants")


@pytest.fixture(scope="module")
def tenants(
    serve_from: Any, folder: Path, sites: dict[str, FakeMcpServer]
) -> Iterator[dict[str, httpx.Client]]:
    """A client for each of two tenants."""
    config = folder / "antiphon.toml"
    config.write_text(f"""
        [[mcp_servers]]
        label = "crm"
        url = "{sites["crm"].url}"
        tenant_authorization = true

        [[mcp_servers]]
        label = "wiki"
        url = "{sites["wiki"].url}"
        headers = {{authorization = "Bearer {OPERATORS}"}}
    """)
    keys = {}
    for name in TOKENS:
        keys[name], kept = create_key(
            name, name, new_id=lambda prefix, name=name: f"{prefix}_{name}", now=lambda: 0
        )
        append(folder / "keys.toml", kept)
    settings = {"auth": "on", "keys_file": folder / "keys.toml", "store": "sqlite"}
    with serve_from(folder, config=config, **settings) as server:
        clients = {
            name: httpx.Client(
                base_url=server.api, headers={"authorization": f"Bearer {key}"}, timeout=30
            )
            for name, key in keys.items()
        }
        yield clients
        for client in clients.values():
            client.close()


def crm(name: str) -> Json:
    return {"type": "mcp", "server_label": "crm", "authorization": TOKENS[name]}


WIKI: Json = {"type": "mcp", "server_label": "wiki"}


def test_a_token_reaches_its_server_and_nothing_else(
    tenants: dict[str, httpx.Client],
    sites: dict[str, FakeMcpServer],
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    numbers = {"one": 1000, "two": 2000}

    def ask(job: tuple[str, int]) -> str:
        """Add a number of the tenant's own, then one more in a later response."""
        name, number = job
        client, shown, previous = tenants[name], "", None
        for background in (False, True):
            add = {"mcp": "add", "args": {"a": numbers[name], "b": number}, "server": "crm"}
            also = {"mcp": "add", "args": {"a": 1, "b": 1}, "server": "wiki"}
            response = create(
                client,
                model="scripted-chat",
                input=script(add, also, {"say": "done"}),
                tools=[crm(name), WIKI],
                background=background,
                previous_response_id=previous,
            )
            path = f"/responses/{response['id']}"
            wait_until(lambda path=path: client.get(path).json()["status"] == "completed")
            shown += client.get(path).text + client.get(f"{path}/input_items").text
            previous = response["id"]
        return shown

    jobs = [(name, number) for number in range(ROUNDS) for name in TOKENS]
    with ThreadPoolExecutor(4) as pool:
        shown = "".join(pool.map(ask, jobs))
    by_token: dict[str, set[int]] = {}
    for method, params, headers in sites["crm"].asked:
        called = by_token.setdefault(headers["authorization"], set())
        if method == "tools/call":
            called.add(params["arguments"]["a"])
    assert by_token == {f"Bearer {TOKENS[name]}": {numbers[name]} for name in TOKENS}
    others = {headers["authorization"] for _, _, headers in sites["wiki"].asked}
    assert others == {f"Bearer {OPERATORS}"}
    stored = b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".toml"
    )
    assert b"server_label" in stored
    for token in TOKENS.values():
        assert token not in shown
        assert token not in caplog.text
        assert token.encode() not in stored


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "mcp", "server_label": "crm"}, "tools[0].authorization"),
        ({**crm("one"), "authorization": ""}, "tools[0].authorization"),
        ({**crm("one"), "authorization": "a\u00e4\nb"}, "tools[0].authorization"),
        ({**crm("one"), "server_url": "http://127.0.0.1:1/"}, "tools[0].server_url"),
        ({**crm("one"), "headers": {"authorization": "Bearer x"}}, "tools[0].headers"),
        ({**WIKI, "authorization": TOKENS["one"]}, "tools[0].authorization"),
    ],
)
def test_a_request_brings_the_token_and_nothing_more(
    tenants: dict[str, httpx.Client], tool: Json, param: str
) -> None:
    body = {"model": "scripted-chat", "input": "x", "tools": [tool]}
    refused = tenants["one"].post("/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_a_server_that_repeats_the_token_is_not_heard(
    tenants: dict[str, httpx.Client], sites: dict[str, FakeMcpServer]
) -> None:
    sites["crm"].says["boom"] = f"I do not know {TOKENS['one']}"
    call = {"mcp": "boom", "args": {}, "server": "crm"}
    answer = tenants["one"].post(
        "/responses",
        json={
            "model": "scripted-chat",
            "input": script(call, {"say": "oh"}),
            "tools": [crm("one")],
        },
    )
    assert "I do not know" in answer.text
    assert TOKENS["one"] not in answer.text
