"""An approval that is sent again does not run its call again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

pytestmark = pytest.mark.slow

Json = dict[str, Any]


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        listening.says = {"add": "42"}
        yield listening


@pytest.fixture
def client(serve_from: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    with (
        serve_from(tmp_path, store="sqlite", **allowed) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


def request(site: FakeMcpServer, model: str, **fields: Any) -> Json:
    tool = {"type": "mcp", "server_label": "calc", "server_url": site.url}
    return {"model": model, "tools": [{**tool, "require_approval": "always"}], **fields}


def approval(before: Json) -> Json:
    approval_id = before["output"][-1]["id"]
    return {
        "type": "mcp_approval_response",
        "approval_request_id": approval_id,
        "approve": True,
    }


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("again", [True, False], ids=["approve", "deny"])
def test_a_second_answer_is_refused_and_names_the_first_response(
    client: httpx.Client, site: FakeMcpServer, model: str, stored: bool, again: bool
) -> None:
    asked = {
        "role": "user",
        "content": script({"mcp": "add", "args": {"a": 2}}, {"say": "Done."}),
    }
    before = create(client, **request(site, model, input=[asked], store=stored))

    def answer(approve: bool) -> Json:
        given = {**approval(before), "approve": approve}
        if stored:
            return {"previous_response_id": before["id"], "input": [given], "store": stored}
        return {"input": [asked, *before["output"], given], "store": stored}

    first = create(client, **request(site, model, **answer(True)))
    assert first["output"][0]["output"] == "42"
    refused = client.post("/responses", json=request(site, model, **answer(again)))
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("already_answered", "input")
    assert first["id"] in error["message"]
    assert len(site.methods("tools/call")) == 1


def test_a_call_that_was_denied_cannot_be_approved_later(
    client: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    asked = script({"mcp": "add", "args": {"a": 2}}, {"say": "Done."})
    before = create(client, **request(site, model, input=asked))
    fields = {"previous_response_id": before["id"]}
    denial = {**approval(before), "approve": False}
    denied = create(client, **request(site, model, input=[denial], **fields))
    body = request(site, model, input=[approval(before)], **fields)
    refused = client.post("/responses", json=body)
    assert refused.status_code == 409
    assert denied["id"] in refused.json()["error"]["message"]
    assert site.methods("tools/call") == []


def test_of_answers_at_the_same_time_one_calls(
    client: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    asked = script({"mcp": "add", "args": {"a": 2}}, {"say": "Done."})
    before = create(client, **request(site, model, input=asked))
    fields = {"previous_response_id": before["id"], "input": [approval(before)]}
    body = request(site, model, **fields)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: client.post("/responses", json=body), range(4)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len(site.methods("tools/call")) == 1


def test_a_response_goes_on_after_the_one_that_was_answered(
    client: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    asked = script({"mcp": "add", "args": {"a": 2}}, {"say": "Done."}, {"say": "Yes?"})
    before = create(client, **request(site, model, input=asked))
    fields = {"previous_response_id": before["id"], "input": [approval(before)]}
    answered = create(client, **request(site, model, **fields))
    after = request(site, model, input="More.", previous_response_id=answered["id"])
    assert create(client, **after)["output"][-1]["content"][0]["text"] == "Yes?"


@pytest.mark.parametrize("approve", [True, False], ids=["approved", "denied"])
def test_responses_that_await_an_approval_are_found(
    client: httpx.Client, site: FakeMcpServer, model: str, approve: bool
) -> None:
    asked = script({"mcp": "add", "args": {"a": 2}}, {"say": "Done."})
    before = create(client, **request(site, model, input=asked))
    create(client, model=model, input="Hello.")

    def waiting() -> list[str]:
        page = client.get("/responses", params={"awaits_approval": "true"}).json()
        return [each["id"] for each in page["data"]]

    def preview() -> Json:
        path = f"/responses/{before['id']}"
        shown: Json = client.get(path, params={"include[]": "metrics"}).json()["preview"]
        return shown

    approval_id = before["output"][-1]["id"]
    assert waiting() == [before["id"]]
    assert preview()["approvals"] == [{"id": approval_id, "response_id": None}]
    answer = {**approval(before), "approve": approve}
    fields = {"previous_response_id": before["id"], "input": [answer]}
    answered = create(client, **request(site, model, **fields))
    assert waiting() == []
    assert preview()["approvals"] == [{"id": approval_id, "response_id": answered["id"]}]


def test_an_approval_of_a_fork_counts_once_and_each_call_needs_its_own(
    client: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    call = {"mcp": "add", "args": {"a": 2}}
    asked = script(call, call, {"say": "Done."})
    before = create(client, **request(site, model, input=asked))
    for _ in range(2):
        fields = {"previous_response_id": before["id"], "input": [approval(before)]}
        before = create(client, **request(site, model, **fields))
    assert before["output"][-1]["type"] == "message"
    assert len(site.methods("tools/call")) == 2
