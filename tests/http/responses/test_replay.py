"""What came out goes back in: every kind of item, in every form in which clients send it, gives the
prompt that `previous_response_id` gives (docs/reference/api.md#input-items).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest
from tests.http.conftest import MODELS, create

from antiphon.domain import items as i
from antiphon.domain.history.include_filter import INCLUDABLE_FIELDS
from antiphon.domain.lifecycle import OPENS
from antiphon.domain.requests.request import FIELDS

Json = dict[str, Any]

BY_ROOT = {"agent": {"agent_name": "/root"}, "action": "list_agents"}
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAADs="
GO = {"type": "function", "name": "go", "parameters": {"type": "object", "properties": {}}}


def pair(call: Json, **output: Any) -> list[Json]:
    """Return a call of a client's tool with its output."""
    kind = f"{call['type']}_output"
    return [call, {"type": kind, "call_id": call["call_id"], **output}]


CONVERSATIONS: Mapping[str, list[Json]] = {
    "message": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [
                {
                    "type": "output_text",
                    "text": "Let me look.",
                    "annotations": [
                        {
                            "type": "url_citation",
                            "start_index": 0,
                            "end_index": 3,
                            "url": "https://example.org",
                            "title": "T",
                        }
                    ],
                    "logprobs": [{"token": "Let", "logprob": -0.1, "bytes": [76, 101, 116]}],
                },
            ],
        }
    ],
    "reasoning": [
        {
            "type": "reasoning",
            "id": "rs_1",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "First this, then that."}],
        }
    ],
    "function_call": pair(
        {
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
            "call_id": "call_1",
            "name": "f",
            "arguments": '{"a": 1}',
        },
        output=[{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}],
    ),
    "custom_tool_call": pair(
        {
            "type": "custom_tool_call",
            "id": "ctc_1",
            "status": "completed",
            "call_id": "call_1",
            "name": "sh",
            "input": "ls -l",
        },
        output="a b c",
    ),
    "web_search_call": [
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {
                "type": "search",
                "query": "bonn",
                "sources": [{"type": "url", "url": "https://example.org"}],
            },
        }
    ],
    "file_search_call": [
        {
            "type": "file_search_call",
            "id": "fs_1",
            "status": "completed",
            "queries": ["q"],
            "results": [{"file_id": "file_1", "text": "found"}],
        }
    ],
    "code_interpreter_call": [
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "code": "print(42)",
            "container_id": "cntr_1",
            "outputs": [{"type": "logs", "logs": "42"}],
        }
    ],
    "image_generation_call": [
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "status": "completed",
            "result": PIXEL.partition(",")[2],
            "revised_prompt": "a cat",
        }
    ],
    "computer_call": pair(
        {
            "type": "computer_call",
            "id": "cu_1",
            "status": "completed",
            "call_id": "call_1",
            "actions": [{"type": "screenshot"}],
            "pending_safety_checks": [],
        },
        output={"type": "computer_screenshot", "image_url": PIXEL},
    ),
    "local_shell_call": [
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "status": "completed",
            "call_id": "call_1",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "call_1", "output": '{"stdout": "a"}'},
    ],
    "shell_call": pair(
        {
            "type": "shell_call",
            "id": "sh_1",
            "status": "completed",
            "call_id": "call_1",
            "action": {"commands": ["ls"], "timeout_ms": None},
        },
        output=[{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    ),
    "multi_agent_call": pair(
        {**BY_ROOT, "type": "multi_agent_call", "id": "mac_1", "call_id": "c_1", "arguments": "{}"},
        output=[{"type": "output_text", "text": "none", "annotations": []}],
        **BY_ROOT,
    ),
    "agent_message": [
        {
            "type": "agent_message",
            "id": "amsg_1",
            "agent": {"agent_name": "/root/reader"},
            "author": "/root/reader",
            "recipient": "/root",
            "content": [{"type": "input_text", "text": "Done."}],
        }
    ],
    "apply_patch_call": pair(
        {
            "type": "apply_patch_call",
            "id": "apc_1",
            "status": "completed",
            "call_id": "call_1",
            "operation": {"type": "delete_file", "path": "a.txt"},
        },
        status="completed",
        output="gone",
    ),
    "mcp_list_tools": [
        {
            "type": "mcp_list_tools",
            "id": "mcpl_1",
            "server_label": "dw",
            "tools": [{"name": "ask", "input_schema": {"type": "object"}}],
        }
    ],
    "mcp_call": [
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "status": "completed",
            "server_label": "dw",
            "name": "ask",
            "arguments": '{"q": "x"}',
            "output": "42",
        }
    ],
    "mcp_approval_request": [
        {
            "type": "mcp_approval_request",
            "id": "mcpr_1",
            "server_label": "dw",
            "name": "ask",
            "arguments": "{}",
        },
        {
            "type": "mcp_approval_response",
            "id": "mcpa_1",
            "approval_request_id": "mcpr_1",
            "approve": False,
            "reason": "no",
        },
    ],
    "tool_search_call": [
        {
            "type": "tool_search_call",
            "id": "tsc_1",
            "status": "completed",
            "arguments": {"query": "x"},
            "execution": "server",
        },
        {
            "type": "tool_search_output",
            "id": "tso_1",
            "status": "completed",
            "tools": [GO],
            "execution": "server",
        },
    ],
    "program": [
        {
            "type": "program",
            "id": "prg_1",
            "call_id": "call_1",
            "code": "await f()",
            "fingerprint": "0",
        },
        {
            "type": "program_output",
            "id": "prgo_1",
            "status": "completed",
            "call_id": "call_1",
            "result": "1",
        },
    ],
}
"""By the kind that is meant; what the client makes stands beside it."""

OF_ITS_OWN = {"compaction": "sealed by the server: no client can write one"}

CASES = [(model, kind) for model in MODELS for kind in sorted(CONVERSATIONS)]

REFERRED_TO = {"local_shell_call_output", "mcp_approval_request"}
"""Kinds whose id another item names: without it they are not the same."""


def as_it_came(item: Json) -> Json:
    return item


def with_every_null(item: Json) -> Json:
    """As a client's `model_dump` writes it: each optional key that is not there is null."""
    struct = i.ITEM_TYPES[item["type"]]
    fields = {each.encode_name for each in msgspec.structs.fields(struct) if not each.required}
    return dict.fromkeys(fields) | item


def without_id(item: Json) -> Json:
    return item if item["type"] in REFERRED_TO else _without(item, "id")


def without_status(item: Json) -> Json:
    return _without(item, "status")


def with_unknown_keys(item: Json) -> Json:
    parts = item.get("content")
    more = {"content": [{**part, "parsed": None} for part in parts]} if parts else {}
    return item | more | {"created_by": "x", "parsed": {"a": 1}, "made_up": [None]}


def with_nulls_inside(item: Json) -> Json:
    nulls = dict.fromkeys(("annotations", "logprobs"))
    parts = item.get("content")
    if item["type"] == "message" and parts:
        kinds = ("output_text",)
        item |= {"content": [p | nulls if p["type"] in kinds else p for p in parts]}
    if item["type"] == "reasoning":
        item |= {"summary": None}
    return item


def with_plain_content(item: Json) -> Json:
    if item["type"] != "message":
        return item
    return item | {"content": "".join(part["text"] for part in item["content"])}


def with_strange_annotations(item: Json) -> Json:
    if item["type"] != "message":
        return item
    strange = {"annotations": [{"type": "made_up", "title": None}, {"type": "url_citation"}]}
    strange["logprobs"] = [{"token": "x", "logprob": None, "bytes": None, "top_logprobs": None}]
    return item | {"content": [part | strange for part in item["content"]]}


def _without(item: Json, key: str) -> Json:
    return {name: value for name, value in item.items() if name != key}


FORMS = (
    as_it_came,
    with_every_null,
    without_id,
    without_status,
    with_unknown_keys,
    with_nulls_inside,
    with_plain_content,
    with_strange_annotations,
)


def prompt(response: Json) -> list[list[int]]:
    return [message["tokens"] for message in response["input_messages"]]


def test_every_kind_of_output_item_is_replayed_here() -> None:
    kinds = {str(kind.__struct_config__.tag) for kind in OPENS}
    told = {item["type"] for items in CONVERSATIONS.values() for item in items}
    assert kinds - told - set(OF_ITS_OWN) == set()


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_a_replayed_item_gives_the_prompt_of_a_continued_response(
    http: httpx.Client, model: str, script: Any, kind: str
) -> None:
    asked = script([{"think": "hm"}, {"say": "One moment."}, {"call": "go"}], {"say": "done"})
    given = [
        {"role": "user", "content": "hi"},
        *CONVERSATIONS[kind],
        # last, so that its outputs are counted from here; no user's, which would end the turn
        {"role": "developer", "content": asked},
    ]
    first = create(http, model=model, input=given, tools=[GO])
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "gone"}
    asking: Json = {"model": model, "tools": [GO], "enable_response_messages": True}
    continued = create(http, **asking, input=[result], previous_response_id=first["id"])
    for form in FORMS:
        query: Json = {"order": "asc"}
        if form is without_id:  # what was hidden is found again by its id
            query["include[]"] = list(INCLUDABLE_FIELDS)
        listed = http.get(f"/responses/{first['id']}/input_items", params=query).json()
        history = [form(item) for item in [*listed["data"], *first["output"]]]
        replayed = create(http, **asking, input=[*history, result])
        assert prompt(replayed) == prompt(continued), form.__name__
        assert replayed["output"][-1]["content"][0]["text"] == "done"


def test_every_turn_that_a_model_takes_can_be_sent_back(
    http: httpx.Client, model: str, script: Any
) -> None:
    turns = [
        [{"say": "Looking.", "phase": "commentary"}, {"call": "go"}],
        [{"refuse": "I will not."}],
        [{"think": "hm"}, {"say": "Fine.", "phase": "final_answer"}],
        [{"say": "done"}],
    ]
    history: list[Json] = [{"role": "user", "content": script(*turns)}]
    asking: Json = {"model": model, "tools": [GO], "enable_response_messages": True}
    previous = None
    for _ in turns:
        replayed = create(http, **asking, input=history)
        continued = create(
            http,
            **asking,
            input=history if previous is None else history[-1:],
            previous_response_id=previous,
        )
        assert prompt(replayed) == prompt(continued)
        previous = continued["id"]
        history += continued["output"]
        last = continued["output"][-1]
        answer = {"type": "function_call_output", "call_id": last.get("call_id"), "output": "ok"}
        history.append(answer if "call_id" in last else {"role": "user", "content": "go on"})
    assert last["content"][0]["text"] == "done"


@pytest.mark.parametrize("tagged", [{}, {"type": None}, {"type": "item_reference"}])
def test_a_reference_stands_for_any_stored_item(
    http: httpx.Client, model: str, script: Any, tagged: Json
) -> None:
    asked = script([{"think": "hm"}, {"call": "go"}], {"say": "done"})
    asking: Json = {"model": model, "tools": [GO], "enable_response_messages": True}
    first = create(http, **asking, input=[{"role": "user", "content": asked}])
    call_id = first["output"][-1]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": "gone"}
    listed = http.get(f"/responses/{first['id']}/input_items").json()["data"]
    referred = [{"id": item["id"]} | tagged for item in [*listed, *first["output"]]]
    second = create(http, **asking, input=[*referred, result])
    continued = create(http, **asking, input=[result], previous_response_id=first["id"])
    assert prompt(second) == prompt(continued)
    kept = http.get(f"/responses/{second['id']}/input_items", params={"order": "asc"}).json()
    assert [item["type"] for item in kept["data"]][:3] == ["message", "reasoning", "function_call"]


def test_a_reference_to_an_unknown_item_is_refused_by_name(http: httpx.Client, model: str) -> None:
    hidden = create(http, model=model, input="hi", store=False)["output"][0]["id"]
    for item_id in (hidden, "msg_none"):
        body = {"model": model, "input": [{"type": "item_reference", "id": item_id}]}
        refused = http.post("/responses", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == f"Item with id {item_id!r} not found."


def test_an_item_that_comes_twice_is_named(http: httpx.Client, model: str) -> None:
    first = create(http, model=model, input="hi")
    [item] = first["output"]
    inside = {"input": [item, item]}
    beside = {"input": [item], "previous_response_id": first["id"]}
    for body in (inside, beside):
        refused = http.post("/responses", json={"model": model, **body})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "input")
        assert error["message"].startswith(f"Duplicate item found with id {item['id']}.")


def test_what_was_cut_is_history_and_is_not_gone_on_with(http: httpx.Client, model: str) -> None:
    question = {"role": "user", "content": "hi"}
    prompts = []
    for status in ("completed", "in_progress", "incomplete"):
        said = {"type": "message", "role": "assistant", "content": "Once", "status": status}
        response = create(http, model=model, input=[question, said], enable_response_messages=True)
        prompts.append(prompt(response))
        assert response["output"][0]["content"][0]["text"] == "Echo: hi"
    assert prompts[0] == prompts[1] == prompts[2]


def test_a_call_that_was_cut_needs_no_output(http: httpx.Client, model: str) -> None:
    question = {"role": "user", "content": "hi"}
    for status in ("in_progress", "incomplete"):
        call = {"type": "function_call", "call_id": "call_1", "name": "go", "arguments": '{"a'}
        create(http, model=model, input=[question, call | {"status": status}, question])


@pytest.mark.parametrize("content", ["", None, [], [{"type": "output_text", "text": ""}]])
@pytest.mark.parametrize("role", ["assistant", "user", "developer"])
def test_empty_content_says_nothing(
    http: httpx.Client, model: str, role: str, content: Any
) -> None:
    kind = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, list):
        content = [part | {"type": kind} for part in content]
    given = [
        {"role": "user", "content": "hi"},
        {"role": role, "content": content},
        {"role": "user", "content": "there"},
    ]
    response = create(http, model=model, input=given)
    assert response["output"][0]["content"][0]["text"] == "Echo: there"
    listed = http.get(f"/responses/{response['id']}/input_items").json()["data"]
    assert isinstance(listed[1]["content"], list)
    create(http, model=model, input=listed[::-1])


def test_nulls_in_all_fields_count_as_omitted(http: httpx.Client, model: str) -> None:
    nulls = dict.fromkeys(FIELDS)
    plain = create(http, model=model, input="hi")
    nullified = create(http, **nulls | {"model": model, "input": "hi"})
    for each in (plain, nullified):
        for name in ("id", "created_at", "completed_at", "output", "usage"):
            del each[name]
    assert nullified == plain
    nested = {"text": "format verbosity", "reasoning": "effort summary generate_summary context"}
    inner = {name: dict.fromkeys(fields.split()) for name, fields in nested.items()}
    create(http, model=model, input="hi", **inner)


def test_a_tools_output_can_contain_images(http: httpx.Client, model: str, script: Any) -> None:
    picture = {"type": "input_image", "image_url": PIXEL}
    asked = script([{"call": "go"}], [{"say": "seen"}])
    first = create(http, model=model, input=asked, tools=[GO])
    output = [{"type": "input_text", "text": "look"}, picture, {**picture, "detail": None}]
    call_id = first["output"][0]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": output}
    bodies: list[Json] = [
        {"input": [result], "previous_response_id": first["id"]},
        {"input": [{"role": "user", "content": asked}, *first["output"], result]},
    ]
    for body in bodies:
        second = create(http, model=model, tools=[GO], **body)
        assert second["output"][0]["content"][0]["text"] == "seen"
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + 2 * 85


@pytest.mark.parametrize(
    ("sealed", "reason"),
    [
        ("bm90IG91cnM=", "organization_mismatch"),
        ("?", "organization_mismatch"),
        (None, "prefix_mismatch"),
    ],
)
def test_unreadable_reasoning_is_removed_and_named(
    http: httpx.Client, model: str, sealed: str | None, reason: str
) -> None:
    question = {"role": "user", "content": "hi"}
    unread = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
    without = create(http, model=model, input=[question], enable_response_messages=True)
    response = create(http, model=model, input=[question, unread], enable_response_messages=True)
    assert prompt(response) == prompt(without)
    removed = [{"type": "reasoning", "id": "rs_1", "action": "removed", "reason": reason}]
    assert response["input_transformations"] == removed
    assert http.get(f"/responses/{response['id']}").json() == response
    readable = unread | {"summary": [{"type": "summary_text", "text": "It is a greeting."}]}
    kept = create(http, model=model, input=[question, readable], enable_response_messages=True)
    assert "It is a greeting." in str(kept["input_messages"])
    assert "input_transformations" not in without
    assert "input_transformations" not in kept


def test_a_message_between_agents_is_shown_kept_and_listed(http: httpx.Client, model: str) -> None:
    message = {
        "type": "agent_message",
        "author": "/root",
        "recipient": "/root/reader",
        "content": [
            {"type": "input_text", "text": "New task:"},
            {"type": "encrypted_content", "encrypted_content": "Read a.py."},
        ],
    }
    shown = "Message from /root to /root/reader:\\n\\nNew task:\\n\\nRead a.py."
    first = create(http, model=model, input=[message], enable_response_messages=True)
    assert shown in json.dumps(first["input_messages"])
    listed = http.get(f"/responses/{first['id']}/input_items").json()["data"]
    assert listed == [message | {"id": listed[0]["id"]}]
    second = create(
        http,
        model=model,
        input="Go on",
        previous_response_id=first["id"],
        enable_response_messages=True,
    )
    assert shown in json.dumps(second["input_messages"])


def test_an_update_of_the_configuration_stays_in_force_until_the_next(
    http: httpx.Client, model: str
) -> None:
    def update(**fields: Any) -> Json:
        return {"type": "configuration_update", **fields}

    def answer(*given: Json, **body: Any) -> Json:
        question = {"role": "user", "content": "hi"}
        return create(
            http, model=model, input=[*given, question], enable_response_messages=True, **body
        )

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "n", "schema": schema}
    first = answer(update(reasoning={"effort": "high"}, text={"format": form}))
    assert first["output"][-1]["content"][0]["text"].replace(" ", "") == '{"a":0}'
    second = answer(previous_response_id=first["id"], reasoning={"effort": "low"})
    assert second["reasoning"]["effort"] == "low"
    assert second["text"]["format"] == {"type": "text"}
    assert second["output"][-1]["content"][0]["text"].replace(" ", "") == '{"a":0}'
    if model == "scripted-harmony":
        assert "Reasoning: high" in str(second["input_messages"])
    third = answer(update(text={"format": {"type": "text"}}), previous_response_id=second["id"])
    assert third["output"][-1]["content"][0]["text"] == "Echo: hi"
    listed = http.get(f"/responses/{third['id']}/input_items").json()["data"]
    assert [item["type"] for item in listed].count("configuration_update") == 2
    assert not [item for item in third["output"] if item["type"] == "configuration_update"]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"reasoning": {"effort": "bogus"}}, "input[0].reasoning.effort"),
        ({"text": {"format": {"type": "bogus"}}}, "input[0].text.format.type"),
    ],
)
def test_a_wrong_update_of_the_configuration_is_named(
    http: httpx.Client, model: str, wrong: Json, param: str
) -> None:
    given = [{"type": "configuration_update", **wrong}, {"role": "user", "content": "hi"}]
    refused = http.post("/responses", json={"model": model, "input": given})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
