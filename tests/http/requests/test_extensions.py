"""vLLM's own request fields, on both scripted models."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.http.conftest import create


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][-1]["content"][0]["text"])


def test_earlier_messages_come_in_the_formats_own_shape(http: httpx.Client, model: str) -> None:
    said = [
        {"role": "user", "content": '@@script [{"say": "first"}, {"say": "second"}]'},
        {"role": "assistant", "channel": "final", "content": "first"},
    ]
    if model == "scripted-chat":
        said = [{key: each[key] for key in ("role", "content")} for each in said]
    response = create(http, model=model, input="go on", previous_input_messages=said)
    assert text_of(response) == "second"


def test_earlier_messages_and_an_earlier_response_exclude_each_other(
    http: httpx.Client, model: str
) -> None:
    first = create(http, model=model, input="hi")
    body = {"model": model, "input": "x", "previous_response_id": first["id"]}
    refused = http.post("/responses", json={**body, "previous_input_messages": []})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "previous_input_messages"


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"choice": ["yes", "no"]}, ("yes", "no")),
        ({"regex": "[a-c]{2}"}, ("aa",)),
        ({"json": {"type": "object", "properties": {}, "required": []}}, ("{}",)),
        ({"json": '{"type": "integer"}'}, ("0",)),
    ],
)
def test_a_constraint_limits_the_output(
    http: httpx.Client, model: str, constraint: Any, expected: tuple[str, ...]
) -> None:
    response = create(http, model=model, input="hi", structured_outputs=constraint)
    assert text_of(response) in expected


def test_a_constraint_and_a_text_format_exclude_each_other(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": "hi", "structured_outputs": {"regex": "a"}}
    refused = http.post("/responses", json={**body, "text": {"format": {"type": "json_object"}}})
    assert refused.json()["error"]["param"] == "structured_outputs"


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 1, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1},
        {"presence_penalty": 0.5, "frequency_penalty": -0.5},
        {"logit_bias": {"1": 2.0}, "stop_token_ids": [999_999], "ignore_eos": False},
        {"priority": 3, "cache_salt": "mine"},
        {"vllm_xargs": {"a": 1}, "kv_transfer_params": {"b": 2}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_sampling_and_routing_fields_are_accepted(
    http: httpx.Client, model: str, fields: dict[str, Any]
) -> None:
    response = create(http, model=model, input="hi", **fields)
    for name in ("presence_penalty", "frequency_penalty"):
        assert response[name] == fields.get(name, 0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("structured_outputs", {"json": "{"}),
        ("cache_salt", ""),
        ("cache_salt", "a/b"),
        ("presence_penalty", 3),
        ("min_p", -1),
        ("repetition_penalty", 0),
        ("logit_bias", {"1": "x"}),
        ("stop", 5),
        ("priority", "high"),
    ],
)
def test_a_wrong_extension_names_itself(http: httpx.Client, field: str, value: Any) -> None:
    refused = http.post("/responses", json={"model": "scripted-chat", "input": "hi", field: value})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith(field)


def test_an_id_of_the_clients_is_only_echoed(http: httpx.Client, model: str) -> None:
    response = create(http, model=model, input="hi", request_id="resp_mine")
    assert response["request_id"] == "resp_mine"
    assert response["id"] != "resp_mine"
    assert http.get("/responses/resp_mine").status_code == 404


def test_reasoning_can_be_left_out(http: httpx.Client, model: str) -> None:
    asked = f"@@script {json.dumps([[{'think': 'hm'}, {'say': 'done'}]])}"
    response = create(http, model=model, input=asked, include_reasoning=False)
    assert [item["type"] for item in response["output"]] == ["message"]


def test_requests_and_outputs_are_logged_only_on_request(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    body = {"model": "scripted-chat", "input": "a secret wish"}
    with serve() as server:
        httpx.post(f"{server.api}/responses", json=body)
    assert "secret wish" not in caplog.text
    with serve(log_requests=True, log_outputs=True) as server:
        httpx.post(f"{server.api}/responses", json=body)
    assert caplog.text.count("secret wish") >= 2


def test_logged_requests_hold_no_secrets_of_mcp_servers(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tool = {
        "type": "mcp",
        "server_label": "crm",
        "server_url": "http://127.0.0.1/mcp",
        "authorization": "secret-token",
        "headers": {"x-key": "secret-key"},
    }
    brought = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    body = {"model": "scripted-chat", "input": [{"role": "user", "content": "Hi"}, brought]}
    with serve(log_requests=True) as server:
        for given in (body, {**body, "input": "Hi", "tools": [tool]}):
            httpx.post(f"{server.api}/responses", json=given)
        httpx.post(f"{server.api}/conversations", json={"items": [brought]})
    assert caplog.text.count("x-key") == 3
    assert "secret-" not in caplog.text


def test_stacks_of_errors_are_logged_only_on_request(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for wanted in (False, True):
        caplog.clear()
        with serve(error_stacks=wanted) as server:
            httpx.get(f"{server.api}/responses/resp_none")
        assert ("Traceback" in caplog.text) is wanted
