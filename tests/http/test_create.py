"""Creating responses over a real socket, on both scripted models."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .conftest import create, text_of, wait_until

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        volatile = ("id", "call_id", "created_at", "completed_at", "cached_tokens")
        return {k: without_ids(v) for k, v in value.items() if not k.startswith(volatile)}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def test_a_text_comes_back(http: httpx.Client, model: str, script: Any) -> None:
    response = create(http, model=model, input=script({"say": "hello world"}))
    assert response["status"] == "completed"
    assert text_of(response) == "hello world"
    assert response["usage"]["output_tokens"] > 0


def test_without_a_script_the_model_echoes(http: httpx.Client, model: str) -> None:
    assert text_of(create(http, model=model, input="Say hello.")) == "Echo: Say hello."


@pytest.mark.parametrize(
    "turn",
    [
        {"say": "one two three"},
        [{"think": "hm hm"}, {"say": "abc def"}],
        [{"think": "hm"}, {"call": "get_weather", "args": {"city": "Bonn"}}],
        [
            {"call": "get_weather", "args": {"city": "Bonn"}},
            {"call": "get_weather", "args": {"city": "Kiel"}},
        ],
        {"refuse": "no can do"},
        {"say": "größe 🙂 漢字 ", "repeat": 3},
    ],
)
def test_the_stream_and_the_whole_answer_say_the_same(
    http: httpx.Client, model: str, script: Any, frames: Any, turn: Any
) -> None:
    body = {"model": model, "input": script(turn), "tools": [WEATHER]}
    whole = create(http, **body)
    streamed = http.post("/responses", json={**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = frames(streamed.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert without_ids(events[-1]["response"]) == without_ids(whole)


def test_the_stream_is_token_by_token(
    http: httpx.Client, model: str, script: Any, frames: Any
) -> None:
    body = {"model": model, "input": script({"say": "a b c d e f"}), "stream": True}
    events = frames(http.post("/responses", json=body).text)
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert len(deltas) >= 6
    assert "".join(deltas) == "a b c d e f"


def test_a_function_call_goes_round(http: httpx.Client, model: str, script: Any) -> None:
    asked = script({"call": "get_weather", "args": {"city": "Paris"}}, {"say": "sunny"})
    first = create(http, model=model, input=asked, tools=[WEATHER])
    call = first["output"][-1]
    assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"city": "Paris"})
    answered = {"type": "function_call_output", "call_id": call["call_id"], "output": "20C"}
    chained = create(
        http, model=model, input=[answered], tools=[WEATHER], previous_response_id=first["id"]
    )
    replayed = create(
        http,
        model=model,
        input=[{"role": "user", "content": asked}, *first["output"], answered],
        tools=[WEATHER],
    )
    assert text_of(chained) == text_of(replayed) == "sunny"
    assert chained["usage"]["input_tokens"] == replayed["usage"]["input_tokens"]


def test_a_custom_tool_gets_free_text(http: httpx.Client, model: str, script: Any) -> None:
    tool = {"type": "custom", "name": "run_code"}
    asked = script({"custom": "run_code", "input": 'print("ä\\n")'})
    call = create(http, model=model, input=asked, tools=[tool])["output"][-1]
    assert (call["type"], call["input"]) == ("custom_tool_call", 'print("ä\\n")')


def test_a_namespaced_function_comes_back_under_its_own_name(
    http: httpx.Client, model: str, script: Any
) -> None:
    crm = {"type": "namespace", "name": "crm", "description": "d", "tools": [WEATHER]}
    asked = script({"call": "crm__get_weather", "args": {"city": "Bonn"}})
    call = create(http, model=model, input=asked, tools=[crm])["output"][-1]
    assert (call["namespace"], call["name"]) == ("crm", "get_weather")


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "get_weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [WEATHER]},
    ],
)
def test_a_forced_tool_is_called(http: httpx.Client, model: str, choice: Any) -> None:
    other = {"type": "function", "name": "other"}
    tools = [WEATHER, other]
    response = create(http, model=model, input="hi", tools=tools, tool_choice=choice)
    assert [item["type"] for item in response["output"]] == ["function_call"]
    assert response["output"][0]["name"] == "get_weather"
    assert "city" in json.loads(response["output"][0]["arguments"])


def test_no_tool_is_called_if_the_choice_is_none(http: httpx.Client, model: str) -> None:
    response = create(http, model=model, input="hi", tools=[WEATHER], tool_choice="none")
    assert [item["type"] for item in response["output"]] == ["message"]


def test_without_parallel_calls_a_turn_has_at_most_one_call(
    http: httpx.Client, model: str, script: Any
) -> None:
    two = [{"call": "get_weather", "args": {"city": city}} for city in ("Bonn", "Kiel")]
    body = {"model": model, "input": script(two), "tools": [WEATHER]}
    assert len(create(http, **body)["output"]) == 2
    assert len(create(http, **body, parallel_tool_calls=False)["output"]) == 1


def test_a_json_schema_is_met(http: httpx.Client, model: str) -> None:
    form = {"type": "json_schema", "name": "p", "schema": WEATHER["parameters"], "strict": True}
    response = create(http, model=model, input="hi", text={"format": form})
    assert set(json.loads(text_of(response))) == {"city"}
    assert response["text"]["format"]["schema"] == form["schema"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_cuts_exactly(
    http: httpx.Client, model: str, script: Any, frames: Any, stream: bool
) -> None:
    asked = script({"say": "word ", "repeat": 100})
    body = {"model": model, "input": asked, "max_output_tokens": 20, "stream": stream}
    answer = http.post("/responses", json=body)
    response = frames(answer.text)[-1]["response"] if stream else answer.json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 20
    assert response["output"][-1]["status"] == "incomplete"


def test_logprobs_spell_the_text(http: httpx.Client, model: str, script: Any) -> None:
    include = ["message.output_text.logprobs"]
    body = {"model": model, "input": script([{"think": "x y"}, {"say": "größe 🙂 ok"}])}
    response = create(http, **body, include=include, top_logprobs=2)
    part = response["output"][-1]["content"][0]
    spelled = b"".join(bytes(each["bytes"]) for each in part["logprobs"])
    assert spelled.decode() == part["text"] == "größe 🙂 ok"
    assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])
    assert create(http, **body)["output"][-1]["content"][0]["logprobs"] == []


def test_a_stop_string_ends_the_text(http: httpx.Client, model: str, script: Any) -> None:
    response = create(http, model=model, input=script({"say": "one two three"}), stop="two")
    assert text_of(response) == "one "
    assert response["status"] == "completed"


def test_reasoning_is_an_item_and_is_counted(http: httpx.Client, model: str, script: Any) -> None:
    asked = script([{"think": "let me see"}, {"say": "done"}])
    response = create(http, model=model, input=asked)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"][0]["text"] == "let me see"
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    none = create(http, model=model, input=asked, reasoning={"effort": "none"})
    assert [item["type"] for item in none["output"]] == ["message"]


def test_sealed_reasoning_works_without_a_store(
    http: httpx.Client, model: str, script: Any
) -> None:
    asked = script([{"think": "t"}, {"call": "get_weather", "args": {}}], {"say": "ok"})
    body = {"model": model, "tools": [WEATHER], "store": False}
    include = ["reasoning.encrypted_content"]
    first = create(http, **body, input=asked, include=include)
    sealed = first["output"][0]
    assert sealed["encrypted_content"]
    call = first["output"][-1]
    answered = {"type": "function_call_output", "call_id": call["call_id"], "output": "1"}
    question = {"role": "user", "content": asked}
    closed = {k: v for k, v in sealed.items() if k != "content"}
    opened = create(http, **body, input=[question, sealed, call, answered])
    unsealed = create(http, **body, input=[question, closed, call, answered])
    assert text_of(opened) == text_of(unsealed) == "ok"
    assert opened["usage"]["input_tokens"] == unsealed["usage"]["input_tokens"]


def test_instructions_are_not_inherited(http: httpx.Client, model: str) -> None:
    first = create(http, model=model, input="one", instructions="alpha " * 300)
    second = create(http, model=model, input="two", previous_response_id=first["id"])
    assert second["instructions"] is None
    assert second["usage"]["input_tokens"] < first["usage"]["input_tokens"]


def test_a_long_input_is_refused_or_shortened_as_asked(
    serve: Callable[..., Any], model: str
) -> None:
    items = [{"role": "user", "content": f"number {n} " * 10} for n in range(60)]
    with serve(**{"scripted.context_length": 600}) as server:
        url = f"{server.api}/responses"
        refused = httpx.post(url, json={"model": model, "input": items})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
        body = {"model": model, "input": items, "truncation": "auto"}
        response = httpx.post(url, json=body).json()
    assert response["status"] == "completed"
    assert "number 59" in text_of(response)
    assert response["usage"]["input_tokens"] < 600


def test_the_formats_own_messages_are_shown(http: httpx.Client, model: str, script: Any) -> None:
    asked = script({"say": "hello"})
    response = create(http, model=model, input=asked, enable_response_messages=True)
    for side in ("input_messages", "output_messages"):
        assert response[side]
        assert all(each["type"] == "raw_message_tokens" for each in response[side])
        assert all(each["tokens"] for each in response[side])
    tokens = sum(len(each["tokens"]) for each in response["output_messages"])
    assert tokens == response["usage"]["output_tokens"]


def test_the_details_of_usage_are_numbers_alone(http: httpx.Client, model: str) -> None:
    usage = create(http, model=model, input="hi")["usage"]
    details = [*usage["input_tokens_details"].values(), *usage["output_tokens_details"].values()]
    assert [type(count) for count in details] == [int] * 4


def test_usage_is_told_per_turn_with_the_messages(http: httpx.Client, model: str) -> None:
    usage = create(http, model=model, input="hi", enable_response_messages=True)["usage"]
    assert usage["input_tokens_details"]["input_tokens_per_turn"] == [usage["input_tokens"]]
    assert usage["output_tokens_details"]["output_tokens_per_turn"] == [usage["output_tokens"]]


@pytest.mark.one_process
def test_a_shared_prefix_is_reported_as_cached_for_the_same_salt(
    http: httpx.Client, model: str
) -> None:
    body = {"model": model, "input": "the same long words " * 40}

    def cached(salt: str) -> int:
        usage = create(http, **body, cache_salt=salt)["usage"]
        tokens: int = usage["input_tokens_details"]["cached_tokens"]
        return tokens

    assert cached(f"a-{model}") == 0
    assert cached(f"a-{model}") > 0
    assert cached(f"b-{model}") == 0


def test_leaving_a_stream_aborts_the_run_in_the_engine(
    serve: Callable[..., Any], model: str, script: Any
) -> None:
    with serve() as server:
        engine = server.engine(model)
        asked = script({"say": "x ", "repeat": 10_000, "tick": 0.01})
        body = {"model": model, "input": asked, "stream": True}
        with httpx.stream("POST", f"{server.api}/responses", json=body) as answer:
            lines = answer.iter_lines()  # kept: httpx leaves when its iterator is collected
            next(lines)
            wait_until(lambda: engine.running == 1)
        wait_until(lambda: engine.aborted == 1)
        assert engine.running == 0


def test_leaving_before_a_whole_answer_aborts_the_run_in_the_engine(
    serve: Callable[..., Any], model: str, script: Any
) -> None:
    with serve() as server:
        engine = server.engine(model)
        body = json.dumps({"model": model, "input": script({"hang": 60})}).encode()
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = (
                "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            wait_until(lambda: engine.running == 1)
        wait_until(lambda: engine.aborted == 1)


def test_an_engine_that_fails_is_a_500_or_a_failed_stream(
    http: httpx.Client, model: str, script: Any, frames: Any
) -> None:
    body = {"model": model, "input": script([{"say": "Once"}, {"fail": "server_error"}])}
    plain = http.post("/responses", json=body)
    assert plain.status_code == 500
    assert plain.json()["error"]["code"] == "server_error"
    assert plain.headers["x-should-retry"] == "false"
    events = frames(http.post("/responses", json={**body, "stream": True}).text)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    stored = http.get(f"/responses/{events[-1]['response']['id']}").json()
    assert stored == events[-1]["response"]


def test_a_dead_engine_is_reported_and_the_server_goes_on(
    serve: Callable[..., Any], script: Any
) -> None:
    with serve() as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/health/ready").status_code == 200
        body = {"model": "scripted-chat", "input": script({"die": True})}
        assert client.post("/v1/responses", json=body).status_code == 500
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()["models"]["scripted-chat"]) == (200, "unavailable")
        assert client.get("/health/live").status_code == 200
        again = client.post("/v1/responses", json={"model": "scripted-chat", "input": "hi"})
        assert again.status_code == 503
        other = client.post("/v1/responses", json={"model": "scripted-harmony", "input": "hi"})
        assert other.status_code == 200


@pytest.mark.parametrize("dialect", ["openai", "open-responses"])
def test_a_stream_ends_with_done_only_in_dialects_that_have_it(
    serve: Callable[..., Any], dialect: str
) -> None:
    with serve(dialect=dialect) as server:
        body = {"model": "scripted-chat", "input": "hi", "stream": True}
        streamed = httpx.post(f"{server.api}/responses", json=body).text
    assert streamed.endswith("data: [DONE]\n\n") is (dialect != "openai")


def test_an_offer_of_http2_loses_no_body(http: httpx.Client, model: str) -> None:
    offer = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAMAAABk",
    }
    answer = http.post("/responses", json={"model": model, "input": "Hi"}, headers=offer)
    assert answer.status_code == 200, answer.text
