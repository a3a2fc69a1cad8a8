"""The audit log has a line for each call of a tool, without what the call was about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import MODELS, ROOT, create, script, wait_until
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

Json = dict[str, Any]
ADD: Json = {"mcp": "add", "args": {"a": 2, "b": 40}}
BOOM: Json = {"mcp": "boom", "args": {"a": "hush-4711"}}


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        yield listening


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def audited(serve_from: Any, folder: Path) -> Iterator[httpx.Client]:
    settings: Json = {
        "tool": ["tests.http.odd_tools:OddTools", "tests.http.odd_tools:CarefulTools"],
        "fetch.urls": True,
        "fetch.hosts": ["127.0.0.1:*"],
        "fetch.private": ["127.0.0.1"],
        "audit_log": folder / "audit.jsonl",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        with (
            serve_from(folder, **settings) as server,
            httpx.Client(base_url=server.api, timeout=30) as client,
        ):
            yield client


def server_tool(site: FakeMcpServer, **fields: Any) -> Json:
    tool = {"type": "mcp", "server_label": "calc", "server_url": site.url}
    return {**tool, "require_approval": "never", "authorization": "hush-1234", **fields}


def records_of(folder: Path, response: Json, count: int) -> list[Json]:
    def found() -> list[Json]:
        lines = (folder / "audit.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [record for record in records if record["response_id"] == response["id"]]

    wait_until(lambda: len(found()) == count)
    return found()


def test_a_call_is_recorded_with_a_hash_of_its_arguments(
    audited: httpx.Client, folder: Path, site: FakeMcpServer, model: str
) -> None:
    tools = [server_tool(site)]
    response = create(audited, model=model, input=script(ADD, {"say": "42"}), tools=tools)
    call = response["output"][1]
    [record] = records_of(folder, response, 1)
    assert record["arguments_sha256"] == hashlib.sha256(call["arguments"].encode()).hexdigest()
    shown = {name: record[name] for name in ("tenant", "tool", "server", "name", "result")}
    assert shown == {
        "tenant": "default",
        "tool": "mcp",
        "server": "calc",
        "name": "add",
        "result": "ok",
    }
    assert 0 < record["seconds"] < 30
    assert record["output_bytes"] > 2


def test_a_failed_call_and_one_too_many_are_recorded_as_such(
    audited: httpx.Client, folder: Path, site: FakeMcpServer, model: str
) -> None:
    asked = script(BOOM, ADD, {"say": "ok"})
    tools = [server_tool(site)]
    response = create(audited, model=model, input=asked, tools=tools, max_tool_calls=1)
    results = [(each["name"], each["result"]) for each in records_of(folder, response, 2)]
    assert results == [("boom", "error"), ("add", "refused")]
    written = (folder / "audit.jsonl").read_text()
    assert "hush" not in written


def test_an_approval_request_and_the_approved_call_are_recorded(
    audited: httpx.Client, folder: Path, site: FakeMcpServer, model: str
) -> None:
    tools = [server_tool(site, require_approval="always")]
    before = create(audited, model=model, input=script(ADD, {"say": "42"}), tools=tools)
    given = {
        "type": "mcp_approval_response",
        "approval_request_id": before["output"][-1]["id"],
        "approve": True,
    }
    again = {"model": model, "input": [given], "previous_response_id": before["id"]}
    with fake_mcp_server.site() as elsewhere:
        asked_again = create(audited, **again, tools=[server_tool(elsewhere)])
    approved = create(audited, **again, tools=tools)
    requested = records_of(folder, before, 1)
    requested += records_of(folder, asked_again, 1)
    [called] = records_of(folder, approved, 1)
    assert [each["result"] for each in requested] == ["approval_requested"] * 2
    assert called["result"] == "ok"
    hashes = {each["arguments_sha256"] for each in (*requested, called)}
    assert len(hashes) == 1


def test_a_call_that_is_canceled_is_recorded(audited: httpx.Client, folder: Path) -> None:
    body = {
        "model": MODELS[0],
        "input": script({"mcp": "hang"}, {"say": "Never."}),
        "tools": [{"type": "mcp", "server_label": "odd"}],
        "stream": True,
    }
    with audited.stream("POST", "/responses", json=body) as answer:
        events = (json.loads(line[6:]) for line in answer.iter_lines() if line[:6] == "data: ")
        created = next(events)["response"]
        assert any(event["type"] == "response.mcp_call.in_progress" for event in events)
    [record] = records_of(folder, created, 1)
    assert (record["server"], record["name"], record["result"]) == ("odd", "hang", "canceled")


def test_a_class_of_the_operators_can_require_approval(
    audited: httpx.Client, folder: Path, model: str
) -> None:
    tools = [{"type": "mcp", "server_label": "careful", "require_approval": "never"}]
    results = []
    for name in ("say", "boom"):
        asked = script({"mcp": name}, {"say": "ok"})
        response = create(audited, model=model, input=asked, tools=tools)
        results += [(each["name"], each["result"]) for each in records_of(folder, response, 1)]
    assert results == [("say", "ok"), ("boom", "approval_requested")]


def test_the_record_names_the_api_key_and_its_tenant(serve_from: Any, tmp_path: Path) -> None:
    key = new_key(tmp_path / "keys.toml", tenant="anna")
    settings: Json = {
        "tool": ["tests.http.odd_tools:OddTools"],
        "auth": "on",
        "keys_file": tmp_path / "keys.toml",
        "audit_log": tmp_path / "audit.jsonl",
    }
    body = {
        "model": MODELS[0],
        "input": script({"mcp": "say"}, {"say": "ok"}),
        "tools": [{"type": "mcp", "server_label": "odd"}],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        with (
            serve_from(tmp_path, **settings) as server,
            httpx.Client(base_url=server.api, headers=bearer(key), timeout=30) as client,
        ):
            [record] = records_of(tmp_path, create(client, **body), 1)
    assert record["tenant"] == "anna"
    assert record["key_id"].startswith("key_")
    assert key not in (tmp_path / "audit.jsonl").read_text()
