"""`GET /v1/responses/{id}/explain`: the bundle of a response."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http import conftest
from tests.http.conftest import MODELS, script, wait_until
from tests.support import fake_mcp_server

pytestmark = pytest.mark.slow

Serve = Any
SECRET = "the-heron-knows"
ADD = {"mcp": "add", "args": {"a": 2, "b": 40}}


@contextmanager
def explaining(serve: Serve, **settings: Any) -> Iterator[httpx.Client]:
    given = {"keep_traces": "all", "store": "sqlite", **settings}
    with serve(**given) as server, httpx.Client(base_url=server.api, timeout=15) as http:
        yield http


def create(http: httpx.Client, **body: Any) -> dict[str, Any]:
    return conftest.create(http, **{"model": "scripted-chat", **body})


def bundle_of(http: httpx.Client, response_id: str) -> dict[str, Any]:
    answer = http.get(f"/responses/{response_id}/explain")
    assert answer.status_code == 200, answer.text
    bundle: dict[str, Any] = answer.json()
    return bundle


@pytest.mark.parametrize("model", MODELS)
def test_a_bundle_shows_what_the_model_read_and_wrote(serve: Serve, model: str) -> None:
    with explaining(serve) as http:
        text = script([{"think": "Hm."}, {"say": "Hello."}])
        created = create(http, model=model, input=text, instructions="Be kind.")
        bundle = bundle_of(http, created["id"])
    [turn] = bundle["turns"]
    assert "Be kind." in turn["prompt"]
    assert "Hello." in turn["output"]
    assert "<" in turn["output"], "special tokens are visible"
    assert sum(step[0] for step in turn["steps"]) == turn["output_tokens"]
    assert turn["output_tokens"] == created["usage"]["output_tokens"]
    assert turn["prompt_tokens"] == created["usage"]["input_tokens"]
    assert bundle["response"]["output"] == created["output"]
    assert bundle["response"]["metrics"]["turns"]
    assert bundle["request"]["instructions"] == "Be kind."
    assert "input" not in bundle["request"]
    assert len(bundle["input_items"]) == 1
    numbers = [event["event"]["sequence_number"] for event in bundle["events"]]
    assert numbers == [*range(len(numbers))]
    times = [event["at"] for event in bundle["events"] if event["at"] is not None]
    assert times == sorted(times)
    assert not bundle["missing"]


def test_a_bundle_shows_the_calls_of_tools(serve: Serve) -> None:
    with fake_mcp_server.site() as site, explaining(serve, **SITE) as http:
        created = create(http, input=script(ADD, {"say": "42."}), tools=mcp(site.origin))
        bundle = bundle_of(http, created["id"])
    assert [turn["kind"] for turn in bundle["turns"] if "kind" in turn] == ["tools"]
    listing, call, answer = bundle["turns"]
    assert "prompt" not in listing
    [add] = call["calls"]
    assert (add["name"], add["namespace"]) == ("add", "calc")
    assert "42" in str(add["output"])
    assert "42." in answer["output"]


def test_a_failed_response_is_explained(serve: Serve) -> None:
    with explaining(serve, keep_traces="failed") as http:
        refused = http.post(
            "/responses",
            json={"model": "scripted-chat", "input": script([{"say": "a"}, {"fail": "x"}])},
        )
        assert refused.status_code == 500
        whole = create(http, input=script({"say": "Hello."}))
        cut = create(http, input=script({"say": "Hello. " * 99}), max_output_tokens=16)
        assert cut["status"] == "incomplete"
        kept = bundle_of(http, cut["id"])
        assert kept["turns"][0]["reason"] == "length"
        assert not kept["missing"]
        assert any("keep_traces" in reason for reason in bundle_of(http, whole["id"])["missing"])


def test_a_failed_background_response_is_explained(serve: Serve) -> None:
    with explaining(serve, keep_traces="failed") as http:
        text = script([{"say": "Nearly"}, {"fail": "server_error"}])
        path = f"/responses/{create(http, input=text, background=True)['id']}"
        wait_until(lambda: http.get(path).json()["status"] == "failed")
        bundle = bundle_of(http, path.rpartition("/")[2])
    [turn] = bundle["turns"]
    assert "Nearly" in turn["output"]
    assert "reason" not in turn
    assert bundle["request"]["background"] is True
    assert not bundle["missing"]


def test_without_a_trace_the_bundle_says_what_is_missing(serve: Serve) -> None:
    with explaining(serve, keep_traces="off") as http:
        created = create(http, input=script({"say": "Hello."}))
        bundle = bundle_of(http, created["id"])
    [reason] = bundle["missing"]
    assert "keep_traces" in reason
    assert bundle["response"]["output"] == created["output"]
    assert bundle["events"]
    assert bundle["turns"] == []
    assert bundle["request"] is None


def test_an_unknown_response_is_not_found(serve: Serve) -> None:
    with explaining(serve) as http:
        assert http.get("/responses/resp_none/explain").status_code == 404
        created = create(http, input="Hi.")
        http.delete(f"/responses/{created['id']}")
        assert http.get(f"/responses/{created['id']}/explain").status_code == 404


def test_no_secret_of_a_request_is_in_its_bundle(serve: Serve) -> None:
    with fake_mcp_server.site() as site, explaining(serve, **SITE) as http:
        tools = mcp(site.origin, headers={"X-Token": SECRET}, authorization=SECRET)
        created = create(http, input=script(ADD, {"say": "42."}), tools=tools)
        answer = http.get(f"/responses/{created['id']}/explain")
    assert answer.status_code == 200
    assert answer.json()["turns"]
    assert SECRET not in answer.text


def test_a_trace_is_sealed_in_the_store(serve: Serve, tmp_path: Path) -> None:
    with explaining(serve) as http:
        fields = {"model": "scripted-chat", "tools": [TOOL]}
        created = create(http, input=script({"say": "Hello."}), **fields)
        assert "<|im_start|>" in bundle_of(http, created["id"])["turns"][0]["prompt"]
    files = list(tmp_path.rglob("antiphon.db*"))
    assert files
    assert not any(b"im_start" in file.read_bytes() for file in files)


def test_a_trace_stays_within_its_bytes(serve: Serve) -> None:
    with explaining(serve, keep_trace_bytes=20_000) as http:
        text = script({"say": "A long answer. " * 2000}) + " A long question." * 5000
        created = create(http, input=text)
        bundle = bundle_of(http, created["id"])
    [turn] = bundle["turns"]
    assert {"prompt", "prompt_token_ids", "output"} <= set(turn["cut"])
    assert len(str(turn)) < 25_000
    assert turn["prompt_tokens"] == created["usage"]["input_tokens"]
    assert any("keep_trace_bytes" in reason for reason in bundle["missing"])


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_is_compared_with_the_previous_response(serve: Serve, model: str) -> None:
    with explaining(serve) as http:
        first = create(http, model=model, input=script({"say": "One."}, {"say": "Two."}))
        second = create(http, model=model, input="Go on.", previous_response_id=first["id"])
        prefix = bundle_of(http, second["id"])["prefix"]
        other = create(
            http,
            model=model,
            input="Go on.",
            instructions="Be kind.",
            previous_response_id=first["id"],
        )
        changed = bundle_of(http, other["id"])["prefix"]
    assert prefix["previous_response_id"] == first["id"]
    assert prefix["parent_tokens"] == first["usage"]["total_tokens"]
    assert prefix["differs_at"] is None or prefix["differs_at"] == prefix["shared_tokens"]
    assert prefix["shared_tokens"] >= first["usage"]["input_tokens"]
    assert changed["differs_at"] is not None
    assert changed["shared_tokens"] < prefix["shared_tokens"]


SITE = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
TOOL = {"type": "function", "name": "mine", "parameters": {"type": "object"}}


def mcp(origin: str, **fields: Any) -> list[dict[str, Any]]:
    tool = {"type": "mcp", "server_label": "calc", "server_url": f"{origin}/mcp"}
    return [{**tool, "require_approval": "never", **fields}]
