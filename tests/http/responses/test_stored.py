"""Stored responses over HTTP: retrieve, resume, list, cancel, delete; and what else is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create as create_response
from tests.http.conftest import script

from antiphon.domain.errors import SettingsError


def create(http: httpx.Client, **body: Any) -> dict[str, Any]:
    return create_response(http, **{"model": "scripted-chat", "input": "hi", **body})


def test_a_response_is_retrieved_as_it_was_created(http: httpx.Client) -> None:
    response = create(http, metadata={"k": "v"})
    assert http.get(f"/responses/{response['id']}").json() == response


@pytest.mark.one_process
def test_a_stream_can_be_read_again_from_any_number(http: httpx.Client, frames: Any) -> None:
    body = {"model": "scripted-chat", "input": "hi", "stream": True}
    events = frames(http.post("/responses", json=body).text)
    path = f"/responses/{events[0]['response']['id']}"
    for after in range(-1, len(events)):
        query: dict[str, Any] = {"stream": "true", "starting_after": after}
        assert frames(http.get(path, params=query).text) == events[after + 1 :]


def test_a_deleted_response_is_gone_for_every_verb(http: httpx.Client) -> None:
    response_id = create(http)["id"]
    deleted = http.delete(f"/responses/{response_id}")
    assert deleted.json() == {"id": response_id, "object": "response", "deleted": True}
    path = f"/responses/{response_id}"
    for answer in (
        http.get(path),
        http.delete(path),
        http.get(f"{path}/input_items"),
        http.get(path, params={"stream": "true"}),
        http.post(f"{path}/cancel"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["message"]
    body = {"model": "scripted-chat", "input": "x", "previous_response_id": response_id}
    refused = http.post("/responses", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "previous_response_not_found"


def test_input_items_are_listed_with_ids_newest_first(http: httpx.Client) -> None:
    first = create(http, input=[{"role": "user", "content": "a", "made_up": 1}])
    second = create(http, input="b", previous_response_id=first["id"])
    path = f"/responses/{second['id']}/input_items"
    listed = http.get(path).json()
    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "user"]
    assert (listed["first_id"], listed["last_id"]) == (
        listed["data"][0]["id"],
        listed["data"][-1]["id"],
    )
    assert listed["data"][-1]["made_up"] == 1
    page = http.get(path, params={"order": "asc", "limit": 2}).json()
    assert page["has_more"]
    rest = http.get(path, params={"order": "asc", "after": page["last_id"]}).json()
    assert page["data"] + rest["data"] == listed["data"][::-1]


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 101}, {"limit": "many"}, {"order": "sideways"}]
)
def test_a_wrong_query_names_its_parameter(http: httpx.Client, query: dict[str, Any]) -> None:
    refused = http.get(f"/responses/{create(http)['id']}/input_items", params=query)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == next(iter(query))


@pytest.mark.parametrize("style", ["include[]", "include"])
def test_include_is_read_in_every_spelling(http: httpx.Client, style: str) -> None:
    path = f"/responses/{create(http)['id']}"
    good = {style: "reasoning.encrypted_content"}
    assert http.get(path, params=good).status_code == 200
    refused = http.get(path, params={style: "bogus"})
    assert refused.json()["error"]["param"] == "include[0]"


def test_a_background_response_says_when_to_ask_again_until_it_is_finished(
    http: httpx.Client, model: str
) -> None:
    def header_of(answer: httpx.Response) -> str | None:
        assert answer.status_code == 200, answer.text
        return answer.headers.get("openai-poll-after-ms")

    body = {"model": model, "input": script([{"say": "a"}, {"hang": 60}]), "background": True}
    key = {"idempotency-key": f"poll-{model}"}
    created = http.post("/responses", json=body, headers=key)
    path = f"/responses/{created.json()['id']}"
    for answer in (created, http.post("/responses", json=body, headers=key), http.get(path)):
        assert header_of(answer) == "1000"
    assert header_of(http.post(f"{path}/cancel")) is None
    assert header_of(http.get(path)) is None
    plain = http.post("/responses", json={"model": model, "input": "hi"})
    assert header_of(plain) is None


def test_a_background_response_is_polled_and_cancelled(
    http: httpx.Client, script: Any, frames: Any
) -> None:
    asked = script({"say": "x ", "repeat": 10_000, "tick": 0.01})
    started = create(http, input=asked, background=True)
    assert started["status"] in ("queued", "in_progress")
    path = f"/responses/{started['id']}"
    assert http.get(path).json()["status"] == "in_progress"
    cancelled = http.post(f"{path}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert http.get(path).json() == http.post(f"{path}/cancel").json() == cancelled
    events = frames(http.get(path, params={"stream": "true"}).text)
    assert events[-1]["response"] == cancelled


def test_a_store_on_a_file_outlives_the_server(serve: Callable[..., Any], tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/kept.db"
    with serve(store=file) as server, httpx.Client(base_url=server.api) as http:
        first = create(http, input="remember")
    with serve(store=file) as server, httpx.Client(base_url=server.api) as http:
        assert http.get(f"/responses/{first['id']}").json() == first
        second = create(http, input="and now", previous_response_id=first["id"])
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_an_unstored_response_is_in_no_file(serve: Callable[..., Any], tmp_path: Path) -> None:
    secret = "correct horse battery staple"
    with serve(store="sqlite") as server, httpx.Client(base_url=server.api) as http:
        response = create(http, input=secret, store=False)
        assert http.get(f"/responses/{response['id']}").status_code == 404
    left = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert left
    assert not [file for file in left if secret.encode() in file.read_bytes()]


def test_models_are_listed_and_found_by_name(http: httpx.Client) -> None:
    listed = http.get("/models").json()
    names = [model["id"] for model in listed["data"]]
    assert names[:2] == ["scripted-chat", "scripted"]
    assert "scripted-harmony" in names
    assert http.get("/models/scripted").json()["id"] == "scripted"
    missing = http.get("/models/none/such")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_the_server_describes_itself(server: Any) -> None:
    described = httpx.get(f"{server.url}/schema/openapi.json").json()
    create_body = described["paths"]["/v1/responses"]["post"]["requestBody"]
    assert create_body["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/CreateResponse"
    }
    assert "temperature" in described["components"]["schemas"]["CreateResponse"]["properties"]
    assert httpx.get(f"{server.url}/schema").status_code == 200


def test_every_answer_bears_a_request_id(http: httpx.Client) -> None:
    answers = [http.get("/models"), http.get("/responses/resp_none"), http.get("/nowhere")]
    assert all(answer.headers["x-request-id"] for answer in answers)
    own = http.get("/models", headers={"x-request-id": "mine-1"})
    assert own.headers["x-request-id"] == "mine-1"


def test_fields_without_effect_are_named_in_a_header(http: httpx.Client) -> None:
    body = {
        "model": "scripted-chat",
        "input": "hi",
        "made_up_field": 1,
        "moderation": {"model": "m"},
    }
    answer = http.post("/responses", json=body)
    assert answer.headers["x-antiphon-ignored"] == "moderation, made_up_field"


def test_a_store_of_ones_own_is_named_by_its_class(serve: Callable[..., Any]) -> None:
    name = "antiphon.adapters.stores.memory.store:MemoryStore"
    with serve(store=name) as server, httpx.Client(base_url=server.api) as http:
        response = create(http)
        assert http.get(f"/responses/{response['id']}").json() == response


@pytest.mark.parametrize("name", ["no_such_module:Store", "antiphon.adapters.ids:NoStore"])
def test_a_store_that_cannot_be_loaded_is_one_sentence(
    serve: Callable[..., Any], name: str
) -> None:
    refused = pytest.raises(SettingsError, match=f"The store '{name}' cannot be loaded")
    with refused, serve(store=name):
        pass
