"""The Messages API for its clients: keys and rights, the models, errors and signs of life."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import msgspec
import pytest
from tests.http.conftest import ROOT, script
from tests.http.doors.test_messages import PATH, events_of

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy
from antiphon.entrypoints.http.wire.dialects import MESSAGES

HI = [{"role": "user", "content": "hi"}]

# --- models ---------------------------------------------------------------------------------------

VERSION = {"anthropic-version": "2023-06-01"}


def test_a_model_of_anthropics_stands_for_the_default(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": script({"say": "here"})}]
    sent = {"model": "claude-sonnet-9", "messages": messages, "max_tokens": 99}
    answer = http.post(PATH, json=sent, params={"beta": "true"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == http.get("/models").json()["data"][0]["root"]
    assert http.post(f"{PATH}/count_tokens", json=sent).status_code == 200
    elsewhere = {"model": "claude-sonnet-9", "messages": messages}
    assert http.post("/chat/completions", json=elsewhere).status_code == 400


def test_models_are_described_to_clients_of_messages_in_their_form(http: httpx.Client) -> None:
    names = [each["id"] for each in http.get("/models").json()["data"]]
    page = http.get("/models", headers=VERSION).json()
    assert [each["id"] for each in page["data"]] == names
    assert {each["type"] for each in page["data"]} == {"model"}
    assert page["data"][0]["created_at"].endswith("Z")
    assert page["data"][0]["max_input_tokens"] > 0
    first = http.get("/models", headers=VERSION, params={"limit": 1}).json()
    assert (first["first_id"], first["last_id"], first["has_more"]) == (names[0], names[0], True)
    rest = http.get("/models", headers=VERSION, params={"after_id": names[0]}).json()
    assert [each["id"] for each in rest["data"]] == names[1:]
    before = http.get(
        "/models", headers=VERSION, params={"before_id": names[-1], "limit": 1}
    ).json()
    assert [each["id"] for each in before["data"]] == names[-2:-1]
    wrong = http.get("/models", headers=VERSION, params={"after_id": "nobody"})
    assert (wrong.status_code, wrong.json()["type"]) == (400, "error")
    one = http.get(f"/models/{names[0]}", headers=VERSION).json()
    assert (one["type"], one["id"], one["display_name"]) == ("model", names[0], names[0])
    missing = http.get("/models/nobody", headers=VERSION)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")


# --- keys -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., httpx.Client]]:
    """A server that asks for keys; call it for the client of a new key with a policy."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "keys.toml"
    file.touch()
    with serve_from(folder, auth="on", keys_file=file) as server:

        def client(tenant: str = "t", **policy: Any) -> httpx.Client:
            key, kept = create_key("ci", tenant, new_id=new_id, now=lambda: 0)
            append(file, msgspec.structs.replace(kept, policy=KeyPolicy(**policy)))
            return httpx.Client(base_url=server.api, headers={"x-api-key": key}, timeout=30)

        yield client


BODY = {"model": "scripted-chat", "messages": HI, "max_tokens": 9}


def error_of(answer: httpx.Response) -> str:
    found = answer.json()
    assert (found["type"], found["request_id"]) == ("error", answer.headers["request-id"])
    kind: str = found["error"]["type"]
    return kind


def test_a_key_may_be_in_either_header(guarded: Callable[..., httpx.Client]) -> None:
    with guarded() as client:
        assert client.post(PATH, json=BODY).status_code == 200
        assert client.post(f"{PATH}/count_tokens", json=BODY).status_code == 200
        assert client.get("/models", headers=VERSION).status_code == 200
        bearer = {"authorization": f"Bearer {client.headers['x-api-key']}", "x-api-key": "other"}
        assert client.post(PATH, json=BODY, headers=bearer).status_code == 200
        for wrong in ("wrong", "two words", ""):
            answer = client.post(PATH, json=BODY, headers={"x-api-key": wrong})
            assert (answer.status_code, error_of(answer)) == (401, "authentication_error")
        wrong_bearer = client.post(PATH, json=BODY, headers={"authorization": "Bearer wrong"})
        assert wrong_bearer.status_code == 401  # the key in the other header cannot make up for it
    with guarded(scopes=("read",)) as reader:
        answer = reader.post(PATH, json=BODY)
        assert (answer.status_code, error_of(answer)) == (403, "permission_error")


def test_the_header_of_this_api_is_no_key_for_others(guarded: Callable[..., httpx.Client]) -> None:
    with guarded() as client:
        sent = {"model": "scripted-chat", "input": "hi"}
        assert client.post("/responses", json=sent).status_code == 401
        assert client.get("/models").status_code == 401
        assert client.get("/messagesx").status_code == 401


def test_a_key_has_its_rights_here_too(guarded: Callable[..., httpx.Client]) -> None:
    with guarded(models=("scripted-harmony",)) as client:
        assert client.post(PATH, json=BODY).status_code == 400
        answer = client.post(PATH, json={**BODY, "model": "claude-x"})
        assert answer.json()["model"] == "scripted-harmony"
    with guarded(tools=("function",)) as client:
        search = {"type": "web_search_20250305", "name": "web_search"}
        answer = client.post(PATH, json={**BODY, "tools": [search]})
        assert (answer.status_code, error_of(answer)) == (403, "permission_error")
        assert "tools[0]" in answer.json()["error"]["message"]


def test_a_limit_counts_the_requests_of_all_doors(guarded: Callable[..., httpx.Client]) -> None:
    with guarded(limits={"requests/min": 2}) as client:
        first = client.post(PATH, json=BODY)
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        bearer = {"authorization": f"Bearer {client.headers['x-api-key']}"}
        sent = {"model": "scripted-chat", "input": "hi", "store": False}
        assert client.post("/responses", json=sent, headers=bearer).status_code == 200
        answer = client.post(PATH, json=BODY)
        assert (answer.status_code, error_of(answer)) == (429, "rate_limit_error")


def test_a_message_that_is_kept_is_its_tenants(guarded: Callable[..., httpx.Client]) -> None:
    with guarded("ours") as ours, guarded("theirs") as theirs:
        kept = ours.post(PATH, json={**BODY, "store": True}).json()["id"]
        path = f"/responses/{kept.replace('msg_', 'resp_')}"
        for client, status in ((ours, 200), (theirs, 404)):
            bearer = {"authorization": f"Bearer {client.headers['x-api-key']}"}
            assert client.get(path, headers=bearer).status_code == status


# --- on the wire ----------------------------------------------------------------------------------


def test_errors_of_routing_have_the_same_form(http: httpx.Client) -> None:
    missing = http.get("/messages/batches")
    assert (missing.status_code, error_of(missing)) == (404, "not_found_error")
    wrong_method = http.get("/messages")
    assert (wrong_method.status_code, error_of(wrong_method)) == (405, "invalid_request_error")
    form = http.post("/messages", content=b"a=b", headers={"content-type": "text/plain"})
    assert (form.status_code, error_of(form)) == (415, "invalid_request_error")


def test_a_body_may_be_too_large(serve: Callable[..., Any]) -> None:
    with serve(max_body_bytes=1_000_000) as server, httpx.Client(base_url=server.api) as http:
        sent = {**BODY, "messages": [{"role": "user", "content": "x" * 2_000_000}]}
        answer = http.post(PATH, json=sent)
        assert (answer.status_code, error_of(answer)) == (413, "request_too_large")


def test_a_prompt_may_be_too_long(serve: Callable[..., Any]) -> None:
    with (
        serve(**{"scripted.context_length": 100}) as server,
        httpx.Client(base_url=server.api) as http,
    ):
        sent = {**BODY, "messages": [{"role": "user", "content": "word " * 200}]}
        answer = http.post(PATH, json=sent)
        assert (answer.status_code, error_of(answer)) == (400, "invalid_request_error")
        message = answer.json()["error"]["message"]
        lengths = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", message)
        assert lengths, message
        assert int(lengths[1]) > 200
        assert int(lengths[2]) <= 100
        fits = http.post(PATH, json={**BODY, "max_tokens": 32_000})
        assert fits.status_code == 200, fits.text


@pytest.mark.parametrize(("style", "sign"), [("auto", "ping"), ("event", "ping"), ("comment", "")])
def test_a_silent_stream_shows_signs_of_life(
    serve: Callable[..., Any], style: str, sign: str
) -> None:
    with (
        serve(keepalive=style, keepalive_s=0.2) as server,
        httpx.Client(base_url=server.api) as http,
    ):
        messages = [{"role": "user", "content": script({"say": "x", "delay": 1})}]
        sent = {"model": "scripted", "messages": messages, "stream": True, "max_tokens": 99}
        written = http.post(PATH, json=sent).text
    assert (written.count('data: {"type":"ping"}') > 1) is bool(sign)
    assert (": keepalive\n" in written) is not bool(sign)
    assert events_of(written)[-1]["type"] == "message_stop"


def test_a_head_finds_the_server(http: httpx.Client) -> None:
    url = str(http.base_url).removesuffix("v1/")
    assert http.head(url).status_code == 200


def test_the_door_is_counted_by_its_route(serve: Callable[..., Any]) -> None:
    with serve(metrics=True) as server, httpx.Client(base_url=server.url) as http:
        http.post(f"/v1{PATH}", json={**BODY, "model": "scripted"})
        assert 'route="/v1/messages"' in http.get("/metrics").text


def test_the_reference_has_the_types_of_errors() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    table = page.partition("### Errors of Messages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+|any other) \| `(\w+)` \|$", table, re.MULTILINE)
    sent = {status: kind for status, kind in MESSAGES.error_types.items() if status != 503}
    assert {int(status) if status.isdigit() else 0: kind for status, kind in rows} == sent
