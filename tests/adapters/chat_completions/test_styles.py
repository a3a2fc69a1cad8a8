"""The same answer gives the same deltas, whichever server writes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping

import pytest
from tests.adapters.chat_completions.turns import TOOLS, join, read, turn_of
from tests.http.conftest import script
from tests.upstreams.chat_faults import SECRET
from tests.upstreams.chat_server import MODEL, ScriptedChatServer, scripted_chat_server
from tests.upstreams.chat_styles import STYLES

from antiphon.adapters.models.chat_completions import ChatCompletionsModel, ChatOptions
from antiphon.application.ports import Sampling, Turn
from antiphon.domain import content as c
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import EngineDead, EngineError, ModelBusy, RequestError

IGNORED = {"ollama": {"logit_bias", "top_k"}}
"""What a server does nothing with and does not refuse."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as server:
        yield server


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest, upstream: ScriptedChatServer) -> str:
    upstream.received.clear()
    upstream.faults.clear()
    return str(request.param)


@pytest.fixture
async def model(style: str, upstream: ScriptedChatServer) -> AsyncIterator[ChatCompletionsModel]:
    think = "tags" if STYLES[style].reasoning == "think_tags" else "field"
    options = ChatOptions(url=upstream.url(style), model=MODEL, think=think)
    model = ChatCompletionsModel(["mine"], options)
    await model.start()
    yield model
    await model.aclose()


async def test_reasoning_text_and_calls_are_the_same(model: ChatCompletionsModel) -> None:
    turn = turn_of(
        {"think": "Add, then note."},
        {"say": "I add."},
        {"call": "add", "args": {"a": 2}},
        {"call": "now", "args": {}},
        {"custom": "note", "input": 'say "hi"\n\\ ✓'},
    )
    assert join(await read(model, turn)) == [
        ("ReasoningDelta", "Add, then note."),
        ("TextDelta", "I add."),
        ("call", "add", "function", '{"a": 2}'),
        ("call", "now", "function", "{}"),
        ("call", "note", "custom", 'say "hi"\n\\ ✓'),
        "stop",
    ]


async def test_a_conversation_goes_on_after_calls(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    request = script(
        [{"think": "Add."}, {"call": "add", "args": {"a": 2}}, {"custom": "note", "input": "x"}],
        {"say": "42."},
    )
    items = [
        i.Message(role="developer", content="Be brief."),
        i.Message(role="user", content=request),
        i.Reasoning(content=(c.ReasoningText(text="Add."),)),
        i.FunctionCall(call_id="call_of_add", name="add", arguments='{"a": 2}'),
        i.CustomToolCall(call_id="call_of_note", name="note", input="x"),
        i.FunctionCallOutput(call_id="call_of_add", output="42"),
        i.CustomToolCallOutput(call_id="call_of_note", output="noted"),
    ]
    turn = Turn(model="mine", items=items, tools=TOOLS, instructions="Add.")
    assert join(await read(model, turn)) == [("TextDelta", "42."), "stop"]
    messages = upstream.chats[-1].body["messages"]
    assert messages[0] == {"role": "system", "content": "Add.\n\nBe brief."}
    assert [message["role"] for message in messages[1:]] == ["user", "assistant", "tool", "tool"]
    call_ids = [call["id"] for call in messages[2]["tool_calls"]]
    assert call_ids == [message["tool_call_id"] for message in messages[3:]]
    count = len(upstream.chats)
    await read(model, turn)
    assert len(upstream.chats) == count + 1  # what the server refuses is known by now


async def test_what_the_server_does_not_know_is_named(
    model: ChatCompletionsModel, upstream: ScriptedChatServer, style: str
) -> None:
    sampling = Sampling(seed=7, top_k=5, logit_bias={"5": 1.0}, temperature=0.5, max_tokens=50)
    turn = turn_of({"say": "Hello."}, sampling=sampling, parallel_tool_calls=False)
    deltas = await read(model, turn)
    assert join(deltas) == [("TextDelta", "Hello."), "stop"]
    refused = STYLES[style].refused_fields | (
        {"logit_bias", "top_k"} if style == "ollama" else set()
    )
    asked = {"seed", "top_k", "logit_bias", "temperature"}
    renamed = {"seed"} if style == "mistral" else set()  # there it is `random_seed`
    assert set(model.ignored_fields(turn)) == (asked & refused) - renamed
    assert upstream.chats[-1].body.keys() & refused == set()


async def test_usage_is_the_servers_or_an_estimate(model: ChatCompletionsModel, style: str) -> None:
    deltas = await read(model, turn_of({"think": "Hm. " * 9}, {"say": "Hello there. " * 10}))
    end = deltas[-1]
    assert isinstance(end, d.TurnEnd)
    assert end.usage.input > 20
    assert 20 <= end.usage.output <= 200
    assert 0 < end.usage.reasoning < end.usage.output


async def test_a_prompt_beyond_the_context_is_refused_by_its_name(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    upstream.faults.append("context")
    with pytest.raises(RequestError) as refused:
        await model.start_turn(turn_of({"say": "Hello."}), request_id="r")
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


ERRORS: Mapping[str, type[Exception]] = {
    "500": EngineError,
    "503": EngineDead,
    "429": ModelBusy,
    "401": EngineDead,
    "403": EngineDead,
    "404": EngineDead,
    "redirect": EngineDead,
    "filtered prompt": RequestError,
}


@pytest.mark.parametrize("fault", ERRORS)
async def test_an_error_is_one_of_ours_and_tells_no_secret(
    model: ChatCompletionsModel, upstream: ScriptedChatServer, fault: str
) -> None:
    upstream.faults.append(fault)
    with pytest.raises(ERRORS[fault]) as failed:
        await model.start_turn(turn_of({"say": "Hello."}), request_id="r")
    assert SECRET not in str(failed.value)
    assert type(failed.value) is ERRORS[fault]
    if isinstance(failed.value, ModelBusy):
        assert failed.value.retry_after_s == 7
    if isinstance(failed.value, RequestError) and fault == "filtered prompt":
        assert failed.value.code == "content_filter"
    assert join(await read(model, turn_of({"say": "Hello."})))[-1] == "stop"
