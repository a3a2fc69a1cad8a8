"""Prompt cache diagnostics: which of two prompts' tokens differ first, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import Response
from tests.http.conftest import MODELS, create, script, stream, text_of, wait_until
from tests.http.requests.test_media import data_url, png
from tests.http.wire.websocket_client import Client, url_of
from tests.support import fake_mcp_server
from tests.upstreams.chat_server import MODEL, scripted_chat_server
from websockets.sync.client import connect

from antiphon.adapters.formats.chat_template.scripted.markup import IMAGE
from antiphon.domain.responses.cache_diagnostics import OPENING_TOKENS

Json = dict[str, Any]
Edit = Callable[[Json], None]


def tool(name: str) -> Json:
    return {"type": "function", "name": name, "description": f"Returns {name}.", "parameters": {}}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def first_request(model: str) -> Json:
    return {
        "model": model,
        "instructions": "Be kind, and say why.",
        "tools": [tool("weather"), tool("time")],
        "input": [
            user("We have three herons at the lake, and one of them is grey."),
            {"role": "assistant", "content": "How nice: herons eat fish."},
            user(script({"say": "So do I."})),
        ],
        "include": ["metrics"],
        "enable_response_messages": True,
    }


def next_request(before: Json, answer: Json) -> Json:
    """The same conversation, continued: nothing of what was there is changed."""
    said = [{"role": "assistant", "content": text_of(answer)}]
    return {
        **before,
        "input": [*before["input"], *said, user(script({"say": "Well."}))],
        "prompt_cache_options": {"comparison_response_id": answer["id"]},
    }


def tokens_of(answer: Json) -> list[int]:
    return [token for message in answer["input_messages"] for token in message["tokens"]]


def first_difference(before: Json, after: Json) -> int:
    pairs = enumerate(zip(tokens_of(before), tokens_of(after), strict=False))
    return next(index for index, (a, b) in pairs if a != b)


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


SITE = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
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


def compared(http: httpx.Client, with_id: str, **fields: Any) -> Json:
    options = {"prompt_cache_options": {"comparison_response_id": with_id}}
    response = create(http, **{"model": "scripted-chat", "input": "hi", **options, **fields})
    diagnostics: Json = response["prompt_cache_diagnostics"]
    return diagnostics


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


# --- images, tools of servers, other models -------------------------------------------------------


def test_another_image_of_the_same_size_is_another_prompt(http: httpx.Client) -> None:
    def looks_at(shade: int) -> Json:
        image = {"type": "input_image", "image_url": data_url(png(shade=shade))}
        content = [{"type": "input_text", "text": "Look:"}, image]
        return {"role": "user", "content": content}

    before = first_request("scripted-chat")
    before["input"].insert(1, looks_at(1))
    first = create(http, **before)
    same = next_request(before, first)
    assert create(http, **same)["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    body = next_request(before, first)
    body["input"][1] = looks_at(2)
    second = create(http, **body)
    told, comparison = second["prompt_cache_diagnostics"], second["metrics"]["prompt_comparison"]
    assert (told["reason"], comparison["part"]) == ("input_changed", "input[1]")
    assert tokens_of(first) == tokens_of(second)[: len(tokens_of(first))]
    assert told["comparison_reusable_tokens"] == tokens_of(second).index(IMAGE)


@pytest.mark.slow
def test_tools_that_a_server_lists_are_compared(serve: Any, model: str) -> None:
    with fake_mcp_server.site() as site, serve(**SITE) as server:
        http = httpx.Client(base_url=server.api, timeout=20)
        tools = [{
            "type": "mcp", "server_label": "calc", "server_url": f"{site.origin}/mcp",
            "require_approval": "never",
        }]  # fmt: skip
        add = {"mcp": "add", "args": {"a": 2, "b": 40}}
        with http:
            first = create(http, model=model, input=script(add, {"say": "42"}), tools=tools)
            fields: Json = {
                "model": model,
                "input": script({"say": "Well."}),
                "previous_response_id": first["id"],
                "prompt_cache_options": {"comparison_response_id": first["id"]},
            }
            second = create(http, **fields, tools=tools)
            tools[0]["allowed_tools"] = ["add"]  # type: ignore[assignment]
            third = create(http, **fields, tools=tools)
    assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    assert third["prompt_cache_diagnostics"]["reason"] == "tools_changed"


SEVERAL = """\
[[models]]
name = "quick"
engine = "scripted"

[[models]]
name = "deep"
engine = "scripted"
format = "harmony"
fallback = ["quick"]

[[models]]
name = "far"
engine = "chat"
url = "{url}"
model = "{model}"
"""


@pytest.mark.slow
def test_the_model_that_ran_counts_and_texts_have_no_tokens(serve: Any, tmp_path: Path) -> None:
    with scripted_chat_server() as upstream:
        file = tmp_path / "several.toml"
        text = SEVERAL.format(url=upstream.url("openai"), model=MODEL)
        file.write_text(text, encoding="utf-8")
        with serve(config=file) as server, httpx.Client(base_url=server.api, timeout=20) as http:
            first = create(http, model="deep", input=script({"say": "a"}))
            deep = {"model": "deep", "input": script({"say": "b"})}
            assert compared(http, first["id"], **deep)["reason"] == "input_changed"
            far = create(http, model="far", input=script({"say": "a"}))
            assert compared(http, far["id"], model="far") == {"type": "unavailable"}
            for each in server.container.supervised_models():
                if each.names[0] == "deep":
                    each._model._engine._die("no GPU")
            fallen = create(http, **deep)
            assert compared(http, first["id"], **deep)["reason"] == "model_changed"
            same = compared(http, fallen["id"], **deep)
            assert same == {"type": "cache_hit"}


@pytest.mark.slow
@pytest.mark.parametrize("keep_traces", ["off", "all"])
def test_a_trace_has_the_tokens_of_a_prompt_that_is_not_whole(
    serve: Any, model: str, keep_traces: str
) -> None:
    with serve(keep_traces=keep_traces) as server:
        http = httpx.Client(base_url=server.api, timeout=20)
        with http:
            items = [{"type": "message", **user("We have three herons.")}]
            conversation = http.post("/conversations", json={"items": items}).json()["id"]
            fields: Json = {"model": model, "conversation": conversation}
            first = create(http, **fields, input=script({"say": "One."}))
            path = f"/conversations/{conversation}/items"
            [*_, item] = http.get(path).json()["data"]
            assert http.delete(f"{path}/{item['id']}").status_code == 200
            told = compared(http, first["id"], **fields, input=script({"say": "Two."}))
    if keep_traces == "off":
        assert told == {"type": "unavailable"}
    else:
        assert (told["type"], told["reason"]) == ("cache_miss", "input_changed")


TOOLS_OF_ALL_KINDS: dict[str, Json] = {
    "function": {**tool("tide"), "strict": True, "parameters": {"type": "object"}},
    "custom": {"type": "custom", "name": "note", "description": "Notes."},
    "grammar": {
        "type": "custom",
        "name": "sum",
        "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9+]+"},
    },
    "namespace": {
        "type": "namespace",
        "name": "birds",
        "description": "Of birds.",
        "tools": [tool("count"), tool("name")],
    },
    "later tools": {**tool("rare"), "defer_loading": True},
    "search": {"type": "tool_search"},
    "apply_patch": {"type": "apply_patch"},
    "local_shell": {"type": "local_shell"},
    "computer": {"type": "computer"},
    "unheard": {"type": "image_generation"},
}


@pytest.mark.parametrize(
    "choice", ["auto", "none", {"type": "function", "name": "weather"}], ids=["auto", "none", "one"]
)
def test_a_stored_response_keeps_all_that_a_prompt_says_of_tools(
    http: httpx.Client, model: str, choice: Any
) -> None:
    tools = [*TOOLS, *TOOLS_OF_ALL_KINDS.values()]
    before = {**first_request(model), "tools": tools, "tool_choice": choice}
    before["input"][-1] = user(script({"call": "weather", "args": {}}))
    first = create(http, **before)
    body = next_request(before, first)
    body["input"][-2:] = [user("And then?")]
    second = create(http, **body)
    assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}


def test_a_response_with_settings_of_every_kind_is_a_hit(http: httpx.Client, model: str) -> None:
    before = first_request(model) | {
        "text": {"verbosity": "high", "format": {**SCHEMA, "strict": True, "description": "A."}},
        "reasoning": {"effort": "low", "summary": "auto", "context": "all_turns"},
        "truncation": "auto",
        "temperature": 0.2,
        "chat_template_kwargs": {"a": 1},
    }
    before["input"][-1] = user(script([{"think": "Hm."}, {"say": "{}"}]))
    first = create(http, **before)
    second = create(http, **next_request(before, first))
    assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}, second["metrics"]


def test_a_loop_of_thoughts_and_calls_is_compared_as_the_model_read_it(
    http: httpx.Client, model: str
) -> None:
    """Formats leave out thoughts of earlier turns, and repeat a turn as the model has written it.

    Thoughts that a later prompt leaves out are a miss, whose tokens the engine computes again.
    """
    steps = [
        user(script([{"think": "I look."}, {"call": "weather", "args": {"at": "the lake"}}])),
        None,
        user(script([{"think": "Rain, then."}, {"say": "It rains."}])),
        user(script([{"say": "Still."}, {"call": "time", "args": {}}])),
        None,
        user("Thanks."),
    ]
    answers: list[Json] = []
    for step in steps:
        fields: Json = {**first_request(model), "input": [step]}
        if step is None:
            call = next(item for item in answers[-1]["output"] if item["type"] == "function_call")
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}
            fields["input"] = [output]
        if answers:
            options = {"comparison_response_id": answers[-1]["id"]}
            fields |= {"previous_response_id": answers[-1]["id"], "prompt_cache_options": options}
        answers.append(create(http, **fields))
    for before, after in pairwise(answers):
        one, other = tokens_of(before), tokens_of(after)
        told = after["prompt_cache_diagnostics"]
        if told["type"] == "cache_hit":
            assert one[: len(one) - OPENING_TOKENS] == other[: len(one) - OPENING_TOKENS]
            continue
        assert told["reason"] == "input_changed", after["metrics"]
        assert told["comparison_reusable_tokens"] == first_difference(before, after)
        assert after["metrics"]["prompt_comparison"]["part"] in ("rendering", "input[1]")


@pytest.mark.slow
def test_a_container_is_no_part_of_a_prompt(containers: httpx.Client, model: str) -> None:
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    runs = script({"python": "print(6 * 7)"}, {"say": "42"})
    first = create(containers, model=model, input=runs, tools=tools)
    assert first["output"][0]["type"] == "code_interpreter_call", first["output"]
    second = create(
        containers,
        model=model,
        input=script({"say": "Well."}),
        tools=tools,
        previous_response_id=first["id"],
        prompt_cache_options={"comparison_response_id": first["id"]},
    )
    assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}
