"""Limits and rights of API keys over HTTP and WebSocket, as clients see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace
from tests.http.conftest import script, wait_until
from tests.http.wire.websocket_client import Client, url_of
from websockets.sync.client import connect

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy

MODEL = "scripted-chat"
BODY = {"model": MODEL, "input": "hi", "store": False}


class Keys:
    """Creates keys in the file of the running server, and clients that use them."""

    def __init__(self, file: Path, server: Any) -> None:
        self.file, self.server = file, server

    def create(self, **policy: Any) -> str:
        key, api_key = create_key("ci", "t", new_id=new_id, now=time.time)
        append(self.file, replace(api_key, policy=KeyPolicy(**policy)))
        return key

    def client(self, **policy: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.create(**policy)}"}
        return httpx.Client(base_url=self.server.api, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def keys(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Keys]:
    folder = tmp_path_factory.mktemp("limits")
    file = folder / "keys.toml"
    file.touch()
    with serve_from(folder, auth="on", keys_file=file, store="sqlite") as server:
        yield Keys(file, server)


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_the_headers_say_what_a_key_has_left(keys: Keys) -> None:
    with keys.client(limits={"requests/day": 5, "tokens/day": 10_000}) as client:
        for left in (4, 3):
            headers = client.post("/responses", json=BODY).headers
            assert headers["x-ratelimit-limit-requests"] == "5"
            assert headers["x-ratelimit-remaining-requests"] == str(left)
            assert headers["x-ratelimit-limit-tokens"] == "10000"
            assert 0 < int(headers["x-ratelimit-remaining-tokens"]) < 10_000
            assert headers["x-ratelimit-reset-tokens"].endswith("s")


def test_a_key_without_limits_has_no_such_headers(keys: Keys) -> None:
    with keys.client() as client:
        headers = client.post("/responses", json=BODY).headers
    assert not [name for name in headers if name.startswith("x-ratelimit")]


def test_a_request_over_the_limit_is_a_clear_429(keys: Keys) -> None:
    with keys.client(limits={"requests/day": 1}) as client:
        for path in ("/responses", "/responses/input_tokens", "/responses/compact"):
            answer = client.post(path, json=BODY)
            if path == "/responses":
                assert answer.status_code == 200
                answer = client.post(path, json=BODY)
            error = error_of(answer, 429)
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert "requests per day (RPD): Limit 1, Used 1, Requested 1." in error["message"]
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/models").status_code == 200  # reading is not limited


def test_the_official_client_does_not_retry_until_tomorrow(keys: Keys) -> None:
    key = keys.create(limits={"tokens/day": 1})
    with (
        openai.OpenAI(base_url=keys.server.api, api_key=key, max_retries=5) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.responses.create(model=MODEL, input="hi")
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_the_end_of_a_run_frees_its_slot_before_the_client_sees_it(keys: Keys) -> None:
    with keys.client(limits={"runs": 1}) as client:
        for store in (True, False) * 5:
            assert client.post("/responses", json={**BODY, "store": store}).status_code == 200


def test_a_client_that_leaves_frees_the_slot_of_its_run(keys: Keys) -> None:
    slow = {**BODY, "input": script({"say": "slow", "delay": 20}), "stream": True}
    with keys.client(limits={"runs": 1}) as client:
        with client.stream("POST", "/responses", json=slow) as answer:
            assert answer.status_code == 200
            assert client.post("/responses", json=BODY).status_code == 429
        wait_until(lambda: client.post("/responses", json=BODY).status_code == 200)


def test_a_background_run_counts_until_it_ends(keys: Keys) -> None:
    body = {**BODY, "store": True, "background": True}
    with keys.client(limits={"runs": 1, "tokens/day": 10**6}) as client:
        slow = script({"say": "slow", "delay": 20})
        accepted = client.post("/responses", json={**body, "input": slow}).json()
        assert client.post("/responses", json=body).status_code == 429
        client.post(f"/responses/{accepted['id']}/cancel")
        assert client.post("/responses", json=body).status_code == 200


def test_a_websocket_gets_the_refusal_with_its_headers(keys: Keys) -> None:
    key = keys.create(limits={"requests/day": 1})
    with connect(
        url_of(keys.server),
        additional_headers={"authorization": f"Bearer {key}"},
        proxy=None,
    ) as connection:
        client = Client(connection)
        client.turn()
        client.ask()
        event = client.error()
    assert event["status"] == 429
    assert event["error"]["code"] == "rate_limit_exceeded"
    assert event["error"]["headers"]["x-ratelimit-remaining-requests"] == "0"
    assert int(event["error"]["headers"]["retry-after"]) >= 1


# --- rights ---------------------------------------------------------------------------------------


def test_a_model_that_a_key_may_not_use_does_not_exist_for_it(keys: Keys) -> None:
    with keys.client(models=("scripted-harmony",)) as client:
        names = [model["id"] for model in client.get("/models").json()["data"]]
        assert "scripted-harmony" in names
        assert MODEL not in names
        unknown, refused = (
            error_of(client.post("/responses", json={**BODY, "model": name}), 400)
            for name in ("nothing-here", MODEL)
        )
        assert {**unknown, "message": ""} == {**refused, "message": ""}
        assert MODEL not in unknown["message"]
        assert refused["message"].replace(MODEL, "nothing-here") == unknown["message"]
        assert error_of(client.get(f"/models/{MODEL}"), 404)["code"] == "model_not_found"
        for path in ("/responses/input_tokens", "/responses/compact"):
            assert client.post(path, json=BODY).status_code == 400
        default = {"input": "hi", "store": False}
        counted = client.post("/responses/input_tokens", json=default)
        assert counted.status_code == 200


def test_a_tool_that_a_key_may_not_use_is_named(keys: Keys) -> None:
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    with keys.client(tools=("function", "web_search")) as client:
        assert client.post("/responses", json={**BODY, "tools": [function]}).status_code == 200
        for tool in (
            {"type": "mcp", "server_label": "a", "server_url": "https://example.org/mcp"},
            {"type": "code_interpreter", "container": {"type": "auto"}},
            {"type": "not_known_yet"},
        ):
            answer = client.post("/responses", json={**BODY, "tools": [function, tool]})
            error = error_of(answer, 403)
            assert (error["param"], error["code"]) == ("tools[1]", "insufficient_permissions")


def test_a_host_that_a_key_may_not_use_is_named(keys: Keys) -> None:
    image = {"type": "input_image", "image_url": "http://evil.example/a.png"}
    file = {"type": "input_file", "file_url": "http://example.org.evil.example/a.pdf"}
    message = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    mcp = {"type": "mcp", "server_label": "a", "server_url": "https://evil.example/mcp"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [image]}
    with keys.client(hosts=("example.org",)) as client:
        for fields, param in (
            ({"tools": [mcp]}, "tools[0].server_url"),
            ({"input": [{**message, "content": [image]}]}, "input[0].content[0].image_url"),
            ({"input": [message, {**message, "content": [file]}]}, "input[1].content[0].file_url"),
            ({"input": [message, call, output]}, "input[2].output[0].image_url"),
        ):
            for path in ("/responses", "/responses/input_tokens"):
                error = error_of(client.post(path, json={**BODY, **fields}), 403)
                assert (error["param"], error["code"]) == (param, "insufficient_permissions")
        assert client.post("/responses", json=BODY).status_code == 200


def test_a_host_that_a_key_may_not_use_cannot_be_brought_in_by_a_history(keys: Keys) -> None:
    image = {"type": "input_image", "image_url": "http://evil.example/a.png"}
    item = {"role": "user", "content": [image]}
    with keys.client(hosts=("example.org",)) as client:
        made = client.post("/conversations", json={"items": [item]}).json()["id"]
        added = client.post("/conversations", json={}).json()["id"]
        client.post(f"/conversations/{added}/items", json={"items": [item]}).raise_for_status()
        [listed] = client.get(f"/conversations/{made}/items").json()["data"]
        for fields in (
            {"conversation": made},
            {"conversation": added},
            {"input": [{"type": "item_reference", "id": listed["id"]}]},
        ):
            body = {**BODY, **fields, "store": True}
            for path in ("/responses", "/responses/input_tokens"):
                error = error_of(client.post(path, json=body), 403)
                assert error["code"] == "insufficient_permissions", fields


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        ("/containers", "code_interpreter"),
        ("/containers", "shell"),
        ("/containers/cntr_1/files", "shell"),
        ("/vector_stores", "file_search"),
        ("/vector_stores/vs_1/files", "file_search"),
        ("/vector_stores/vs_1/search", "file_search"),
    ],
)
def test_what_belongs_to_a_tool_needs_its_right(keys: Keys, path: str, tool: str) -> None:
    for tools, is_refused in ((("function",), True), ((tool,), False), ((), False)):
        with keys.client(tools=tools) as client:
            for method in ("GET", "POST"):
                answer = client.request(method, path, json={})
                assert (answer.status_code == 403) is is_refused, answer.text


def test_a_key_that_may_only_read_changes_nothing(keys: Keys) -> None:
    with keys.client() as writer, keys.client(scopes=("read",)) as reader:
        stored = writer.post("/responses", json={**BODY, "store": True}).json()["id"]
        assert reader.get(f"/responses/{stored}").status_code == 200
        for method, path in (
            ("POST", "/responses"),
            ("POST", "/conversations"),
            ("DELETE", f"/responses/{stored}"),
        ):
            error = error_of(reader.request(method, path, json=BODY), 403)
            assert error["code"] == "insufficient_permissions"
            assert "'write'" in error["message"]
        assert writer.get(f"/responses/{stored}").status_code == 200
    with keys.client(scopes=("write",)) as writer:
        assert error_of(writer.get("/models"), 403)["code"] == "insufficient_permissions"


def test_a_key_expires(keys: Keys) -> None:
    with keys.client(expires_at=int(time.time()) + 3600) as client:
        assert client.get("/models").status_code == 200
    with keys.client(expires_at=int(time.time()) - 1) as client:
        error = error_of(client.get("/models"), 401)
    assert (error["code"], error["message"]) == ("invalid_api_key", "The API key has expired.")


def test_answers_beyond_a_limit_end_those_before_them(keys: Keys) -> None:
    engine = keys.server.engine(MODEL)
    aborted = engine.aborted
    messages = [{"role": "user", "content": script([{"hang": 20}, {"say": "late"}])}]
    with keys.client(limits={"requests/day": 2}) as client:
        answer = client.post(
            "/chat/completions", json={"model": MODEL, "n": 3, "messages": messages}
        )
    assert error_of(answer, 429)["code"] == "rate_limit_exceeded"
    wait_until(lambda: engine.aborted == aborted + 2)
