"""A turn becomes a request of Chat Completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.adapters.chat_completions.turns import TOOLS

from antiphon.adapters.models.chat_completions.capabilities import FEATURES, refused_feature
from antiphon.adapters.models.chat_completions.counting import estimate
from antiphon.adapters.models.chat_completions.errors import read_refusal, to_our_error
from antiphon.adapters.models.chat_completions.messages import MessageStyle, write_messages
from antiphon.adapters.models.chat_completions.request import write_body
from antiphon.adapters.upstreams.client import UpstreamRefused
from antiphon.application.ports import Constraint, Sampling, Turn
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.errors import ModelBusy, RequestError
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import ToolChoice

HELLO = i.Message(role="user", content="Hello")
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def body(*, missing: set[str] | None = None, kind: str = "", **fields: Any) -> dict[str, Any]:
    turn = Turn(**{"model": "mine", "items": [HELLO], **fields})
    messages = write_messages(turn, MessageStyle())
    return write_body(turn, messages, model="m", missing=missing or set(), kind=kind).fields


def messages(*items: i.Item, style: MessageStyle | None = None) -> list[dict[str, Any]]:
    turn = Turn(model="mine", items=items, tools=TOOLS)
    return write_messages(turn, style or MessageStyle())


def choose(mode: Any, *names: str) -> ToolChoice:
    return ToolChoice(mode=mode, names=frozenset(names) if names else None)


CHOICES = {
    "auto": (choose("auto"), ["add", "now", "note"], None),
    "none": (choose("none"), [], None),
    "required": (choose("required"), ["add", "now", "note"], "required"),
    "one": (
        choose("required", "now"),
        ["now"],
        {"type": "function", "function": {"name": "now"}},
    ),
    "allowed": (choose("auto", "now", "note"), ["now", "note"], None),
    "required of some": (choose("required", "now", "note"), ["now", "note"], "required"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_only_tools_that_may_be_called_are_offered(case: str) -> None:
    choice, names, expected = CHOICES[case]
    fields = body(tools=TOOLS, choice=choice)
    assert [tool["function"]["name"] for tool in fields.get("tools", [])] == names
    assert fields.get("tool_choice") == expected


def test_a_forced_call_is_refused_where_the_server_cannot_force_it() -> None:
    with pytest.raises(RequestError) as refused:
        body(tools=TOOLS, choice=choose("required"), missing={"tool_choice"})
    assert (refused.value.param, refused.value.code) == ("tool_choice", "unsupported_parameter")
    assert "tool_choice" not in body(tools=TOOLS, missing={"tool_choice"})


def test_a_custom_tool_is_a_function_with_one_text() -> None:
    [_, _, note] = body(tools=TOOLS)["tools"]
    assert list(note["function"]["parameters"]["properties"]) == ["input"]


SCHEMA = {"type": "json_schema", "name": "place", "schema": {"type": "object"}, "strict": True}
FORMATS: dict[str, tuple[dict[str, Any], Any]] = {
    "text": ({"type": "text"}, None),
    "json_object": ({"type": "json_object"}, {"type": "json_object"}),
    "json_schema": (
        SCHEMA,
        {
            "type": "json_schema",
            "json_schema": {"name": "place", "schema": {"type": "object"}, "strict": True},
        },
    ),
}


@pytest.mark.parametrize("case", FORMATS)
def test_a_text_format_is_a_response_format(case: str) -> None:
    text_format, expected = FORMATS[case]
    text = TextConfig(format=text_format)
    assert body(text=text).get("response_format") == expected


def test_a_schema_is_refused_where_the_server_has_none() -> None:
    with pytest.raises(RequestError) as refused:
        body(text=TextConfig(format=SCHEMA), missing={"response_format"})
    assert refused.value.param == "text.format"


@pytest.mark.parametrize(
    ("kind", "server"), [("structural_tag", "vllm"), ("regex", "ollama"), ("choice", "")]
)
def test_a_constraint_that_the_server_does_not_know_is_refused(kind: Any, server: str) -> None:
    sampling = Sampling(constraint=Constraint(kind=kind, value="a+"))
    with pytest.raises(RequestError) as refused:
        body(sampling=sampling, kind=server)
    assert refused.value.param == f"structured_outputs.{kind}"


def test_vllm_is_told_of_a_constraint() -> None:
    sampling = Sampling(constraint=Constraint(kind="regex", value="a+"))
    assert body(sampling=sampling, kind="vllm")["structured_outputs"] == {"regex": "a+"}


def test_sampling_is_passed_on_and_the_default_is_the_servers() -> None:
    plain = body()
    assert plain.keys() == {"model", "messages", "stream", "stream_options"}
    sampling = Sampling(
        temperature=0.0, seed=0, max_tokens=9, logprobs=2, stop=tuple("abcdef"), top_k=3
    )
    fields = body(sampling=sampling, effort="low", parallel_tool_calls=False, tools=TOOLS)
    assert (fields["temperature"], fields["seed"], fields["top_k"]) == (0.0, 0, 3)
    assert (fields["logprobs"], fields["top_logprobs"]) == (True, 2)
    assert fields["max_tokens"] == 9
    assert fields["reasoning_effort"] == "low"
    assert fields["parallel_tool_calls"] is False


def test_an_effort_that_the_server_does_not_know_is_left_out_and_no_other() -> None:
    missing = {"reasoning_effort minimal"}
    assert "reasoning_effort" not in body(effort="minimal", missing=missing)
    assert body(effort="low", missing=missing)["reasoning_effort"] == "low"


def test_a_limit_has_its_new_name_where_the_old_one_is_refused() -> None:
    fields = body(sampling=Sampling(max_tokens=9), missing={"max_tokens"})
    assert "max_tokens" not in fields
    assert fields["max_completion_tokens"] == 9


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_are_not_the_servers_business(include: bool) -> None:
    sampling = Sampling(stop=("a",), include_stop_str_in_output=include)
    assert "stop" not in body(sampling=sampling)


def test_a_server_gets_a_field_under_its_own_name() -> None:
    sampling = Sampling(repetition_penalty=1.1, seed=3)
    assert body(sampling=sampling, kind="llamacpp")["repeat_penalty"] == 1.1
    assert body(sampling=sampling, kind="mistralai")["random_seed"] == 3


def test_tenants_have_prompt_caches_of_their_own_where_the_server_can() -> None:
    assert body(cache_salt="s", kind="vllm")["cache_salt"] == "s"
    assert "cache_salt" not in body(cache_salt="s")


def test_images_of_a_tool_follow_its_results_in_a_message_of_the_user() -> None:
    image = (c.InputText(text="Here:"), c.InputImage(image_url=PIXEL))
    written = messages(
        i.FunctionCall(call_id="c1", name="add", arguments="{}"),
        i.FunctionCall(call_id="c2", name="now", arguments="{}"),
        i.FunctionCallOutput(call_id="c1", output=image),
        i.FunctionCallOutput(call_id="c2", output="12:00"),
    )
    assert [message["role"] for message in written] == ["assistant", "tool", "tool", "user"]
    assert written[3]["content"] == [{"type": "image_url", "image_url": {"url": PIXEL}}]
    assert (written[1]["tool_call_id"], written[1]["content"]) == ("c1", "Here:")
    assert 1000 < estimate({"messages": written}) < 1100


def test_what_the_assistant_wrote_in_a_turn_is_one_message() -> None:
    [message] = messages(
        i.Reasoning(content=(c.ReasoningText(text="Hm."),)),
        i.Message(role="assistant", content="I add."),
        i.FunctionCall(call_id="c1", name="add", arguments="{}"),
    )
    assert message["reasoning_content"] == "Hm."
    assert message["content"] == "I add."
    assert [call["id"] for call in message["tool_calls"]] == ["c1"]


def test_later_instructions_are_the_users_where_roles_must_alternate() -> None:
    items = [HELLO, i.Message(role="developer", content="Be brief.")]
    assert [message["role"] for message in messages(*items)] == ["user", "system"]
    [fitted] = messages(*items, style=MessageStyle(alternating=True))
    assert fitted == {"role": "user", "content": "Hello\n\nInstructions:\n\nBe brief."}


@pytest.mark.parametrize(
    ("written", "shown"),
    [("", "{}"), ("null", "{}"), ('["x"]', '{"arguments": ["x"]}'), ('{"a": ', None)],
)
def test_arguments_that_are_no_object_are_in_one(written: str, shown: str | None) -> None:
    call = i.FunctionCall(call_id="call_1", name="look", arguments=written)
    arguments = messages(HELLO, call)[1]["tool_calls"][0]["function"]["arguments"]
    assert arguments == shown if shown else json.loads(arguments) == {"arguments": written}


def test_previous_messages_come_first_and_must_be_those_of_chat_completions() -> None:
    previous = ({"role": "user", "content": "Before"},)
    turn = Turn(model="mine", items=[HELLO], previous_messages=previous)
    assert [each["content"] for each in write_messages(turn, MessageStyle())] == ["Before", "Hello"]
    wrong = Turn(model="mine", items=[HELLO], previous_messages=({"tokens": []},))
    with pytest.raises(RequestError) as refused:
        write_messages(wrong, MessageStyle())
    assert refused.value.param == "previous_input_messages[0]"


def test_a_refusal_of_images_names_the_input() -> None:
    error = UpstreamRefused(400, b'{"error": {"message": "tiny is not a multimodal model"}}')
    refusal = read_refusal(error.body)
    ours = to_our_error(error, refusal, model="m", used={"images", "stream_options"})
    assert isinstance(ours, RequestError)
    assert (ours.param, ours.code) == ("input", "unsupported_value")
    without = to_our_error(error, refusal, model="m", used={"stream_options"})
    assert isinstance(without, RequestError)
    assert without.param is None


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        *(("7", 7), ("0.2", 1), ("999999", 3600), (None, 1), ("soon", 1), ("nan", 1), ("-5", 1)),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999", 1),
    ],
)
def test_the_time_to_retry_is_the_servers(header: str | None, wait_s: float) -> None:
    error = UpstreamRefused(429, b"", header)
    ours = to_our_error(error, read_refusal(b""), model="m", used=())
    assert isinstance(ours, ModelBusy)
    assert ours.retry_after_s == wait_s


REFUSALS = {
    "openai": (
        b'{"error": {"message": "Unsupported parameter: \'max_tokens\' is not supported with this '
        b'model. Use \'max_completion_tokens\' instead.", "param": "max_tokens", "code": '
        b'"unsupported_parameter"}}',
        "max_tokens",
    ),
    "fastapi": (
        b'{"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}',
        "seed",
    ),
    "mistral": (
        b'{"object": "error", "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", '
        b'"seed"], "msg": "Extra inputs are not permitted"}]}}',
        "seed",
    ),
    "a template": (
        b'{"error": {"code": 500, "message": "System message must be at the beginning."}}',
        "role_order",
    ),
    "llama-cpp-python": (
        b"{\"error\": {\"message\": \"1 validation error:\\n 'loc': ('body', 'response_format', "
        b"'type'), 'msg': \\\"Input should be 'text' or 'json_object'\\\"\", \"code\": null}}",
        "response_format",
    ),
    "text": (b"unknown field `seed`", "seed"),
    "a wrong value": (b'{"error": {"message": "seed must be positive", "param": "seed"}}', None),
    "a value of a known field": (
        b'{"error": {"message": "Unsupported value: \'reasoning_effort\' does not support '
        b'\'minimal\' with this model.", "code": "unsupported_value"}}',
        "reasoning_effort minimal",
    ),
    "only the default": (
        b'{"error": {"message": "Unsupported value: \'seed\' does not support 3 with this model. '
        b'Only the default (1) value is supported.", "code": "unsupported_value"}}',
        "seed",
    ),
    "another field": (b'{"error": {"message": "Unknown field: messages[0].name"}}', None),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_names_what_the_server_does_not_know(case: str) -> None:
    content, name = REFUSALS[case]
    used = {"max_tokens", "seed", "role_order", "stream_options", "response_format"}
    used |= {"reasoning_effort", "reasoning_effort minimal"}
    assert refused_feature(read_refusal(content).text, used) == name


def test_no_field_is_named_for_what_the_messages_contain() -> None:
    in_messages = ("images", "reasoning_content", "role_order", "long_call_ids")
    assert [FEATURES[name].path for name in in_messages] == [None] * 4
