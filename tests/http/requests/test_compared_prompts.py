"""Prompts with images, tools of all kinds, other models and thoughts, compared as they were."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script
from tests.http.requests.compared_prompts import (
    Json,
    compared,
    first_difference,
    first_request,
    next_request,
    tokens_of,
    tool,
    user,
)
from tests.http.requests.test_media import data_url, png
from tests.support import fake_mcp_server
from tests.upstreams.chat_server import MODEL, scripted_chat_server

from antiphon.adapters.formats.chat_template.scripted.markup import IMAGE
from antiphon.domain.responses.cache_diagnostics import OPENING_TOKENS

SITE = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {}}}
TOOLS = [tool("weather"), tool("time")]


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
