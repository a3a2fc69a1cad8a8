"""The official SDK against the running server, on both scripted models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

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


@pytest.fixture(params=["scripted-chat", "scripted-harmony"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=15) as sdk:
        yield sdk


def script(*turns: Any) -> str:
    return f"Follow this. @@script {json.dumps(list(turns))}"


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


def test_a_deleted_response_is_gone(client: OpenAI, model: str) -> None:
    response = client.responses.create(model=model, input="x")
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
