"""Prompt cache diagnostics: which of two prompts' tokens differ first, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai.types.responses import Response
from tests.http.conftest import MODELS, create, script, stream, wait_until
from tests.http.requests.compared_prompts import (
    Json,
    compared,
    first_difference,
    first_request,
    next_request,
    tool,
    user,
)
from tests.http.wire.websocket_client import Client, url_of
from websockets.sync.client import connect

Edit = Callable[[Json], None]


def asks(name: str, value: Any) -> Edit:
    return lambda body: body.update({name: value})


def says(index: int, text: str) -> Edit:
    return lambda body: body["input"][index].update(content=text)


def both(*edits: Edit) -> Edit:
    def edit(body: Json) -> None:
        for each in edits:
            each(body)

    return edit


def without(index: int) -> Edit:
    return lambda body: body["input"].pop(index)


def with_first(item: Json) -> Edit:
    return lambda body: body["input"].insert(0, item)


SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {}}}
TOOLS = [tool("weather"), tool("time")]
MISSES: dict[str, tuple[Edit, str, str]] = {
    "an earlier item": (says(0, "We have three herons at sea."), "input_changed", "input[0]"),
    "a later item": (says(1, "How nice: herons eat frogs."), "input_changed", "input[1]"),
    "an item less": (without(0), "input_changed", "input[0]"),
    "an item more": (with_first(user("Hello.")), "input_changed", "input[0]"),
    "the role of an item": (
        lambda body: body["input"][1].update(role="user"),
        "input_changed",
        "input[1]",
    ),
    "the instructions": (asks("instructions", "Be curt."), "input_changed", "instructions"),
    "no instructions": (asks("instructions", None), "input_changed", "instructions"),
    "tools in another order": (asks("tools", TOOLS[::-1]), "tools_changed", "tools[0]"),
    "a tool more": (asks("tools", [*TOOLS, tool("tide")]), "tools_changed", "tools[2]"),
    "a tool less": (asks("tools", TOOLS[:1]), "tools_changed", "tools[1]"),
    "no tools": (asks("tools", []), "tools_changed", "tools[0]"),
    "a tool's description": (
        asks("tools", [TOOLS[0], {**TOOLS[1], "description": "Tells the time."}]),
        "tools_changed",
        "tools[1]",
    ),
    "no tool may be called": (asks("tool_choice", "none"), "tools_changed", "tool_choice"),
    "the verbosity": (asks("text", {"verbosity": "low"}), "verbosity_changed", "text.verbosity"),
    "an item and a format that no prompt shows": (
        both(asks("text", {"format": {"type": "text"}}), says(0, "No herons.")),
        "input_changed",
        "input[0]",
    ),
    "a tool and an item": (
        both(asks("tools", TOOLS[:1]), says(1, "How nice: herons eat frogs.")),
        "tools_changed",
        "tools[1]",
    ),
    "the verbosity and an item": (
        both(asks("text", {"verbosity": "high"}), says(0, "No herons.")),
        "verbosity_changed",
        "text.verbosity",
    ),
}


@pytest.mark.parametrize("change", MISSES)
def test_a_change_is_named_with_its_token(http: httpx.Client, model: str, change: str) -> None:
    edit, reason, part = MISSES[change]
    before = first_request(model)
    first = create(http, **before)
    body = next_request(before, first)
    edit(body)
    second = create(http, **body)
    index = first_difference(first, second)
    tokens = second["usage"]["input_tokens"]
    assert second["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": tokens - index,
        "comparison_reusable_tokens": index,
    }
    assert second["metrics"]["prompt_comparison"] == {
        "response_id": first["id"],
        "result": "cache_miss",
        "reason": reason,
        "part": part,
        "compared_tokens": first["usage"]["input_tokens"],
        "prompt_tokens": tokens,
        "shared_tokens": index,
        "differs_at": index,
    }


def test_a_conversation_that_goes_on_is_a_hit(http: httpx.Client, model: str) -> None:
    before = first_request(model)
    first = create(http, **before)
    second = create(http, **next_request(before, first))
    assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    comparison = second["metrics"]["prompt_comparison"]
    assert comparison["shared_tokens"] == comparison["compared_tokens"]
    assert "differs_at" not in comparison


# --- what differs by the model's format -----------------------------------------------------------

BY_FORMAT: dict[str, tuple[Edit, dict[str, str | None]]] = {
    "the effort": (
        asks("reasoning", {"effort": "high"}),
        {"scripted-chat": None, "scripted-harmony": "reasoning_effort_changed"},
    ),
    "the text format": (
        asks("text", {"format": SCHEMA}),
        {"scripted-chat": None, "scripted-harmony": "text_format_changed"},
    ),
}


@pytest.mark.parametrize("change", BY_FORMAT)
def test_a_change_that_no_prompt_shows_is_none(http: httpx.Client, model: str, change: str) -> None:
    edit, reasons = BY_FORMAT[change]
    first = create(http, **first_request(model))
    body = next_request(first_request(model), first)
    edit(body)
    second = create(http, **body)
    told = second["prompt_cache_diagnostics"]
    if reasons[model] is None:
        assert told == {"type": "cache_hit"}
        return
    assert told["reason"] == reasons[model]
    assert told["comparison_reusable_tokens"] == first_difference(first, second)


def test_another_model_has_another_cache(http: httpx.Client) -> None:
    first = create(http, **first_request(MODELS[0]))
    second = create(http, **next_request(first_request(MODELS[1]), first))
    assert second["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": "model_changed",
        "cache_missed_tokens": second["usage"]["input_tokens"],
        "comparison_reusable_tokens": 0,
    }


def test_another_salt_has_another_cache(http: httpx.Client, model: str) -> None:
    before = {**first_request(model), "cache_salt": "ours"}
    first = create(http, **before)
    same = create(http, **next_request(before, first))
    assert same["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    for salt in ("theirs", None):
        other = create(http, **{**next_request(before, first), "cache_salt": salt})
        assert other["prompt_cache_diagnostics"]["reason"] == "prompt_cache_key_changed"
        assert other["prompt_cache_diagnostics"]["comparison_reusable_tokens"] == 0


HARMLESS: dict[str, Edit] = {
    "a key": asks("prompt_cache_key", "mine"),
    "a service tier": asks("service_tier", "flex"),
    "a temperature": asks("temperature", 0.5),
    "metadata": asks("metadata", {"a": "b"}),
    "fewer tokens": asks("max_output_tokens", 50),
    "no parallel calls": asks("parallel_tool_calls", False),
}


@pytest.mark.parametrize("change", HARMLESS)
def test_a_change_beside_the_prompt_is_a_hit(http: httpx.Client, model: str, change: str) -> None:
    first = create(http, **first_request(model))
    body = next_request(first_request(model), first)
    HARMLESS[change](body)
    assert create(http, **body)["prompt_cache_diagnostics"] == {"type": "cache_hit"}


# --- which responses can be compared --------------------------------------------------------------


NOT_FOUND = {"type": "comparison_response_not_found"}


def test_a_response_that_no_store_has_is_not_found(http: httpx.Client) -> None:
    unstored = create(http, model="scripted-chat", input="hi", store=False)
    deleted = create(http, model="scripted-chat", input="hi")
    http.delete(f"/responses/{deleted['id']}")
    for response_id in ("resp_none", "x", unstored["id"], deleted["id"]):
        assert compared(http, response_id) == NOT_FOUND


def test_a_response_that_has_expired_is_not_found(serve: Any) -> None:
    with serve(keep_days=1e-9) as server, httpx.Client(base_url=server.api) as http:
        first = create(http, model="scripted-chat", input="hi")
        assert asyncio.run(server.container.store().sweep(keep_events_s=60)) == 1
        assert compared(http, first["id"]) == NOT_FOUND


def test_a_response_that_runs_has_no_prompt_yet(http: httpx.Client) -> None:
    slow = script({"say": "x ", "repeat": 10_000, "tick": 0.01})
    running = create(http, model="scripted-chat", input=slow, background=True)
    assert compared(http, running["id"]) == {"type": "unavailable"}
    http.post(f"/responses/{running['id']}/cancel")


def test_a_response_that_was_cut_can_be_compared(http: httpx.Client, model: str) -> None:
    before = {**first_request(model), "max_output_tokens": 16}
    before["input"][-1] = user(script({"say": "word " * 100}))
    first = create(http, **before)
    assert first["status"] == "incomplete"
    second = create(http, **next_request(before, first))
    assert second["status"] == "completed"
    assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}


def test_a_chain_of_responses_is_a_hit_up_to_its_change(http: httpx.Client, model: str) -> None:
    ids: list[str] = []
    for number in range(4):
        fields: Json = {"model": model, "input": script({"say": f"Answer {number}."})}
        if ids:
            options = {"comparison_response_id": ids[-1]}
            fields |= {"previous_response_id": ids[-1], "prompt_cache_options": options}
        response = create(http, **fields)
        assert not ids or response["prompt_cache_diagnostics"] == {"type": "cache_hit"}
        ids.append(response["id"])
    forked = create(
        http,
        model=model,
        input="Other.",
        previous_response_id=ids[1],
        prompt_cache_options={"comparison_response_id": ids[3]},
        include=["metrics"],
    )
    assert forked["prompt_cache_diagnostics"]["reason"] == "input_changed"
    assert forked["metrics"]["prompt_comparison"]["part"] == "input[4]"


def test_a_conversation_is_compared_as_it_was(http: httpx.Client, model: str) -> None:
    conversation = http.post("/conversations", json={}).json()["id"]
    first = create(http, model=model, input=script({"say": "One."}), conversation=conversation)
    for _ in range(2):
        options = {"comparison_response_id": first["id"]}
        fields: Json = {"conversation": conversation, "prompt_cache_options": options}
        second = create(http, model=model, input=script({"say": "Two."}), **fields)
        assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}


def test_what_a_store_does_not_have_of_a_prompt_is_unavailable(http: httpx.Client) -> None:
    before = first_request("scripted-chat") | {
        "previous_input_messages": [{"role": "user", "content": "Before."}]
    }
    first = create(http, **before)
    same = create(http, **next_request(before, first))
    assert same["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    after = next_request(before, first)
    after["previous_input_messages"] = [{"role": "user", "content": "Behind."}]
    other = create(http, **after)
    assert other["prompt_cache_diagnostics"] == {"type": "unavailable"}
    assert "previous_input_messages" in other["metrics"]["prompt_comparison"]["unavailable"]


# --- a shortened conversation ---------------------------------------------------------------------


def test_truncation_is_a_shortened_context(serve: Any, model: str) -> None:
    with serve(**{"scripted.context_length": 600}) as server:
        http = httpx.Client(base_url=server.api, timeout=20)
        with http:
            before = {
                "model": model,
                "truncation": "auto",
                "input": [user("heron " * 60), user("grebe " * 60)],
                "enable_response_messages": True,
            }
            first = create(http, **before)
            body = next_request(before, first)
            body["input"].insert(2, user("crane " * 340))
            second = create(http, **body)
            index = first_difference(first, second)
    assert second["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": "context_compacted",
        "cache_missed_tokens": second["usage"]["input_tokens"] - index,
        "comparison_reusable_tokens": index,
    }


def test_compaction_is_a_shortened_context(http: httpx.Client, model: str) -> None:
    first = create(http, model=model, input=[user("heron " * 1200)])
    management = [{"type": "compaction", "compact_threshold": 1000}]
    options = {"comparison_response_id": first["id"]}
    second = create(
        http,
        model=model,
        input="And now?",
        previous_response_id=first["id"],
        context_management=management,
        prompt_cache_options=options,
    )
    assert second["output"][0]["type"] == "compaction"
    assert second["prompt_cache_diagnostics"]["reason"] == "context_compacted"
    third = create(
        http,
        model=model,
        input="And then?",
        previous_response_id=second["id"],
        prompt_cache_options={"comparison_response_id": second["id"]},
    )
    assert third["prompt_cache_diagnostics"] == {"type": "cache_hit"}


# --- the same object everywhere -------------------------------------------------------------------


def test_the_diagnostics_are_the_same_however_they_are_read(
    http: httpx.Client, model: str, frames: Any
) -> None:
    first = create(http, **first_request(model))
    body = next_request(first_request(model), first)
    body["instructions"] = "Be curt."
    whole = create(http, **body)
    told = whole["prompt_cache_diagnostics"]
    assert told["reason"] == "input_changed"
    assert http.get(f"/responses/{whole['id']}").json()["prompt_cache_diagnostics"] == told
    assert stream(http, **body)["prompt_cache_diagnostics"] == told
    path = f"/responses/{create(http, **body, background=True)['id']}"
    wait_until(lambda: http.get(path).json()["status"] == "completed")
    assert http.get(path).json()["prompt_cache_diagnostics"] == told
    events = frames(http.get(f"{path}?stream=true").text)
    assert events[-1]["response"]["prompt_cache_diagnostics"] == told
    parsed = Response.model_validate(whole)
    assert parsed.prompt_cache_diagnostics is not None
    assert parsed.prompt_cache_diagnostics.type == "cache_miss"
    assert parsed.prompt_cache_diagnostics.to_dict() == told


def test_a_websocket_has_them_too(server: Any, http: httpx.Client, model: str) -> None:
    first = create(http, **first_request(model))
    body = next_request(first_request(model), first)
    with connect(url_of(server), max_size=None, compression=None, proxy=None) as connection:
        client = Client(connection, model)
        given = body.pop("input")
        del body["model"]
        assert client.turn(given, **body)["prompt_cache_diagnostics"] == {"type": "cache_hit"}
        given[0] = user("No herons.")
        missed = client.turn(given, **body)["prompt_cache_diagnostics"]
        assert missed["reason"] == "input_changed"


def test_a_warm_up_is_compared(http: httpx.Client, model: str) -> None:
    first = create(http, **first_request(model), generate=False)
    body = next_request(first_request(model), first)
    body["prompt_cache_options"]["prewarm"] = True
    warm = create(http, **body)
    assert warm["output"] == []
    assert warm["prompt_cache_diagnostics"] == {"type": "cache_hit"}


def test_a_request_that_compares_nothing_has_none(http: httpx.Client, model: str) -> None:
    response = create(http, model=model, input="hi", include=["metrics"])
    assert "prompt_cache_diagnostics" not in response
    assert "prompt_comparison" not in response["metrics"]


def test_a_server_that_did_not_run_the_other_response_compares_it(serve: Any, model: str) -> None:
    with serve(store="sqlite") as one, serve(store="sqlite") as other:
        with httpx.Client(base_url=one.api, timeout=20) as http:
            first = create(http, **first_request(model))
        with httpx.Client(base_url=other.api, timeout=20) as http:
            body = next_request(first_request(model), first)
            assert create(http, **body)["prompt_cache_diagnostics"] == {"type": "cache_hit"}
            body["tools"] = body["tools"][::-1]
            missed = create(http, **body)["prompt_cache_diagnostics"]
    assert missed["reason"] == "tools_changed"


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
def test_other_apis_name_it_as_ignored(http: httpx.Client, path: str) -> None:
    options = {"prompt_cache_options": {"comparison_response_id": "resp_1"}}
    body = {"model": "scripted-chat", "messages": [user("hi")], "max_tokens": 50, **options}
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    field = "prompt_cache_options.comparison_response_id"
    assert field in answer.headers["x-antiphon-ignored"]
