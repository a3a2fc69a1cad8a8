"""The official SDK against the running server, on both scripted models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.conversations import Conversation as ConversationObject
from openai.types.conversations import ConversationItem
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from .conftest import script

ITEM: TypeAdapter[ConversationItem] = TypeAdapter(ConversationItem)
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Place(BaseModel):
    city: str
    population: int | None


def test_create_fits_the_declared_type(client: OpenAI, model: str) -> None:
    response = client.responses.create(
        model=model, input=script({"say": "hello"}), metadata={"k": "v"}, temperature=0.5
    )
    Response.model_validate(response.to_dict(mode="json"), strict=False)
    assert response.output_text == "hello"
    assert response.metadata == {"k": "v"}
    assert response._request_id


def test_every_streamed_event_fits_its_declared_type(client: OpenAI, model: str) -> None:
    turns = [{"think": "hm"}, {"say": "one two"}]
    for event in client.responses.create(model=model, input=script(turns), stream=True):
        EVENT.validate_python(event.to_dict(mode="json"))


def test_the_stream_helper_accumulates(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input=script({"say": "one two three"})) as stream:
        said = ""
        for event in stream:
            if event.type == "response.output_text.delta":
                said += event.delta
                assert event.snapshot == said
        assert stream.get_final_response().output_text == said == "one two three"


def test_parse_gives_an_object(client: OpenAI, model: str) -> None:
    said = json.dumps({"city": "Bonn", "population": None})
    response = client.responses.parse(model=model, input=script({"say": said}), text_format=Place)
    assert response.output_parsed == Place(city="Bonn", population=None)
    unscripted = client.responses.parse(model=model, input="any", text_format=Place)
    assert isinstance(unscripted.output_parsed, Place)


def test_a_function_call_goes_round(client: OpenAI, model: str) -> None:
    asked = script({"call": "get_weather", "args": {"city": "Paris"}}, {"say": "sunny"})
    with client.responses.stream(model=model, input=asked, tools=[WEATHER]) as stream:
        written = "".join(
            event.delta
            for event in stream
            if event.type == "response.function_call_arguments.delta"
        )
        first = stream.get_final_response()
    call = first.output[-1]
    assert call.type == "function_call"
    assert json.loads(written) == json.loads(call.arguments) == {"city": "Paris"}
    second = client.responses.create(
        model=model,
        previous_response_id=first.id,
        tools=[WEATHER],
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "20C"}],
    )
    assert second.output_text == "sunny"


def test_output_is_accepted_as_the_next_input_with_all_its_nulls(
    client: OpenAI, model: str
) -> None:
    turns = [{"think": "t"}, {"call": "get_weather", "args": {"city": "Rome"}}], {"say": "ok"}
    history: list[Any] = [{"role": "user", "content": script(*turns)}]
    first = client.responses.create(model=model, input=history, tools=[WEATHER], store=False)
    history += [item.model_dump() for item in first.output]
    call = first.output[-1]
    assert call.type == "function_call"
    output = [{"type": "input_text", "text": "20C"}]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    second = client.responses.create(model=model, input=history, tools=[WEATHER], store=False)
    assert second.output_text == "ok"


def test_parallel_calls_are_answered_together(client: OpenAI, model: str) -> None:
    calls = [{"call": "get_weather", "args": {"city": city}} for city in ("Oslo", "Rome")]
    first = client.responses.create(
        model=model, input=script(calls, {"say": "both"}), tools=[WEATHER]
    )
    asked = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in asked] == ["Oslo", "Rome"]
    second = client.responses.create(
        model=model,
        previous_response_id=first.id,
        tools=[WEATHER],
        input=[
            {"type": "function_call_output", "call_id": call.call_id, "output": "20C"}
            for call in asked
        ],
    )
    assert second.output_text == "both"


def test_a_custom_tool_takes_free_text(client: OpenAI, model: str) -> None:
    tool: Any = {"type": "custom", "name": "code", "description": "Runs code."}
    turns = {"custom": "code", "input": "print(1)\n"}, {"say": "ran"}
    first = client.responses.create(model=model, input=script(*turns), tools=[tool])
    call = first.output[-1]
    assert call.type == "custom_tool_call"
    assert call.input == "print(1)\n"
    output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "1"}
    second = client.responses.create(
        model=model, previous_response_id=first.id, tools=[tool], input=[output]
    )
    assert second.output_text == "ran"


def test_a_dropped_background_stream_is_resumed_without_a_gap(client: OpenAI, model: str) -> None:
    words = " ".join(f"w{n}" for n in range(40))
    asked = script({"say": words, "tick": 0.01})
    stream = client.responses.create(model=model, input=asked, background=True, stream=True)
    seen: list[Any] = [next(stream) for _ in range(8)]
    stream.close()
    started = seen[0].response.id
    seen += client.responses.retrieve(started, stream=True, starting_after=7)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    deltas = [event.delta for event in seen if event.type == "response.output_text.delta"]
    assert "".join(deltas) == words
    with client.responses.stream(response_id=started, starting_after=7) as helper:
        assert next(iter(helper)).sequence_number == 8
        assert helper.get_final_response().output_text == words


def test_a_background_response_is_cancelled_once_and_for_all(client: OpenAI, model: str) -> None:
    started = client.responses.create(model=model, input=script({"hang": 15}), background=True)
    assert started.status in ("queued", "in_progress")
    assert client.responses.cancel(started.id).status == "cancelled"
    assert client.responses.cancel(started.id).status == "cancelled"
    assert client.responses.retrieve(started.id).status == "cancelled"


def test_a_closed_stream_leaves_the_server_well(client: OpenAI, model: str) -> None:
    asked = script({"say": "y ", "repeat": 500, "tick": 0.02})
    with client.responses.create(model=model, input=asked, stream=True) as stream:
        next(stream)
    assert client.responses.create(model=model, input="well?").output_text == "Echo: well?"


async def test_many_requests_at_once_get_their_own_answers(server: Any, model: str) -> None:
    async with AsyncOpenAI(base_url=server.api, api_key="none", max_retries=0) as sdk:
        asked = (sdk.responses.create(model=model, input=f"number {n}") for n in range(16))
        answers = await asyncio.gather(*asked)
    assert [each.output_text for each in answers] == [f"Echo: number {n}" for n in range(16)]


def test_a_cut_stream_says_why(client: OpenAI, model: str) -> None:
    asked = script({"say": "word ", "repeat": 200})
    with client.responses.stream(model=model, input=asked, max_output_tokens=16) as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_a_compacted_conversation_goes_on(client: OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="Remember me.")
    compacted = client.responses.compact(model=model, previous_response_id=first.id)
    assert "compaction" in [item.type for item in compacted.output]
    kept: list[Any] = [item.to_dict(mode="json", warnings=False) for item in compacted.output]
    kept.append({"role": "user", "content": script({"say": "on we go"})})
    assert client.responses.create(model=model, input=kept).output_text == "on we go"


def test_a_conversation_is_kept_and_its_pages_are_walked(client: OpenAI, model: str) -> None:
    seed: Any = [{"type": "message", "role": "user", "content": "seed"}]
    conversation = client.conversations.create(metadata={"a": "b"}, items=seed)
    ConversationObject.model_validate(conversation.to_dict(mode="json"), strict=False)
    for said in ("one", "two"):
        response = client.responses.create(
            model=model, conversation=conversation.id, input=script({"say": said})
        )
        assert response.conversation is not None
        assert response.conversation.id == conversation.id
    note: Any = [{"role": "developer", "content": "note"}]
    [added] = client.conversations.items.create(conversation.id, items=note).data
    listed = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    for item in listed:
        ITEM.validate_python(item.to_dict(mode="json"), strict=False)
    roles = [getattr(item, "role", None) for item in listed]
    assert roles == ["user", "user", "assistant", "user", "assistant", "developer"]
    assert listed[-1] == added
    assert added.id is not None
    found = client.conversations.items.retrieve(added.id, conversation_id=conversation.id)
    assert found == added
    left = client.conversations.items.delete(added.id, conversation_id=conversation.id)
    assert left.id == conversation.id
    updated = client.conversations.update(conversation.id, metadata={"z": "1"})
    assert updated.metadata == {"z": "1"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_models_are_listed_and_tokens_counted(client: OpenAI, model: str) -> None:
    assert model in [each.id for each in client.models.list()]
    counted = client.responses.input_tokens.count(model=model, input="hello " * 20)
    assert counted.input_tokens > 20


def test_errors_are_of_the_classes_that_clients_catch(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.responses.create(model=model, input="x", temperature=7)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.responses.create(model=model, input="x", previous_response_id="resp_none")
    assert unknown.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none")


def test_pages_of_input_items_are_walked(client: OpenAI, model: str) -> None:
    items: Any = [{"role": "user", "content": f"n{n}"} for n in range(5)]
    response = client.responses.create(model=model, input=items)
    listed = list(client.responses.input_items.list(response.id, order="asc", limit=2))
    assert [item.content[0].text for item in listed] == [f"n{n}" for n in range(5)]  # type: ignore[union-attr]


# The SDK connects in the way of older versions of websockets.
@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
def test_turns_go_over_one_connection(client: OpenAI, model: str) -> None:
    asked = script({"call": "get_weather", "args": {"city": "P"}}, {"say": "Sunny."})
    fields: dict[str, Any] = {"model": model, "tools": [WEATHER], "store": False}
    with client.responses.connect() as connection:
        connection.response.create(input=asked, **fields)
        first = last_response(connection)
        assert first.output[-1].type == "function_call"
        output: Any = {
            "type": "function_call_output",
            "call_id": first.output[-1].call_id,
            "output": "sunny",
        }
        connection.response.create(input=[output], previous_response_id=first.id, **fields)
        assert last_response(connection).output_text == "Sunny."
        connection.response.create(model=model, input="x", previous_response_id="resp_none")
        refused = connection.recv()
        assert refused.type == "error"
        assert refused.error.code == "previous_response_not_found"


def last_response(connection: Any) -> Response:
    """Read one response to its end; its events must fit their types."""
    for event in connection:
        EVENT.validate_python(event.to_dict(mode="json"), strict=False)
        if event.type == "response.completed":
            found: Response = event.response
            return found
    raise AssertionError("the connection was closed")


def test_a_deleted_response_is_gone(client: OpenAI, model: str) -> None:
    response = client.responses.create(model=model, input="x")
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
