"""Sub-agents with the beta of the official SDK: every object and event fits its type."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import TypeAdapter

from .conftest import script

beta = pytest.importorskip("openai.types.beta.beta_response")
events = pytest.importorskip("openai.types.beta.beta_response_stream_event")

EVENT: TypeAdapter[Any] = TypeAdapter(events.BetaResponseStreamEvent)
Json = dict[str, Any]

AGENTS: Any = {"enabled": True, "max_concurrent_subagents": 2}
BETAS: Any = ["responses_multi_agent=v1"]
WAIT = {"call": "wait_agent"}
GO: Any = {
    "type": "function",
    "name": "go",
    "strict": None,
    "parameters": {"type": "object", "properties": {}},
}


def spawn(name: str, *turns: Any) -> Json:
    return {"call": "spawn_agent", "args": {"task_name": name, "message": script(*turns)}}


TREE = script(
    [{"think": "Two of them."}, spawn("north", {"say": "Snow."}), spawn("south", {"say": "Sun."})],
    {"call": "list_agents"},
    {"call": "send_message", "args": {"target": "north", "message": "Hurry."}},
    WAIT,
    WAIT,
    {"say": "Snow and sun."},
)


def check(response: Any) -> None:
    beta.BetaResponse.model_validate(response.to_dict(mode="json"), strict=False)
    assert response.status == "completed"
    for item in response.output:
        # What the SDK does not know is no attribute of the right type.
        assert item.agent.agent_name.startswith("/root")
        known = type(item).model_fields
        assert set(item.to_dict()) <= set(known) | {"content"}, item
    final = [item for item in response.output if item.type == "message"][-1]
    assert final.agent.agent_name == "/root"
    assert final.content[0].text == "Snow and sun."


def test_a_response_with_agents_fits_the_declared_type(client: OpenAI, model: str) -> None:
    response = client.beta.responses.create(
        model=model, input=TREE, multi_agent=AGENTS, betas=BETAS
    )
    check(response)
    check(client.beta.responses.retrieve(response.id, betas=BETAS))
    kinds = {item.type for item in response.output}
    assert kinds == {
        "reasoning",
        "multi_agent_call",
        "multi_agent_call_output",
        "agent_message",
        "message",
    }
    listed = client.beta.responses.input_items.list(response.id, betas=BETAS)
    assert [item.type for item in listed] == ["message"]


def test_every_event_of_a_tree_fits_its_declared_type(client: OpenAI, model: str) -> None:
    stream = client.beta.responses.create(
        model=model, input=TREE, multi_agent=AGENTS, betas=BETAS, stream=True
    )
    agents = set()
    for event in stream:
        EVENT.validate_python(event.to_dict(mode="json"))
        agents.add(event.agent.agent_name)  # type: ignore[union-attr]
        last = event
    assert agents == {"/root", "/root/north", "/root/south"}
    check(last.response)  # type: ignore[union-attr]


def test_a_function_of_an_agent_is_answered_with_the_items_of_the_sdk(
    client: OpenAI, model: str
) -> None:
    turns = [spawn("north", {"call": "go"}, {"say": "Gone."}), WAIT, WAIT, {"say": "Done."}]
    options: Any = {"model": model, "multi_agent": AGENTS, "betas": BETAS, "tools": [GO]}
    first = client.beta.responses.create(input=script(*turns), **options)
    call = next(item for item in first.output if item.type == "function_call")
    assert call.agent is not None
    assert call.agent.agent_name == "/root/north"
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "{}"}
    asked = {"role": "user", "content": script(*turns)}
    replayed = [asked, *(item.to_dict(mode="json") for item in first.output), answer]
    for second in (
        client.beta.responses.create(input=[answer], previous_response_id=first.id, **options),  # type: ignore[list-item]
        client.beta.responses.create(input=replayed, **options),  # type: ignore[arg-type]
    ):
        texts = [
            (item.agent.agent_name, item.content[0].text)  # type: ignore[union-attr]
            for item in second.output
            if item.type == "message"
        ]
        assert texts == [("/root/north", "Gone."), ("/root", "Done.")]


def test_a_tree_in_the_background_is_polled_and_cancelled(client: OpenAI, model: str) -> None:
    slow = script(spawn("north", {"say": "Snow.", "delay": 60}), WAIT, {"say": "Done."})
    response = client.beta.responses.create(
        model=model, input=slow, multi_agent=AGENTS, betas=BETAS, background=True
    )
    cancelled = client.beta.responses.cancel(response.id, betas=BETAS)
    assert cancelled.status == "cancelled"
    client.beta.responses.delete(response.id, betas=BETAS)


def test_without_the_beta_the_server_says_what_is_missing(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match="OpenAI-Beta"):
        client.responses.create(model=model, input="Hi", extra_body={"multi_agent": AGENTS})


# The SDK connects in the way of older versions of websockets.
@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
def test_a_tree_over_a_websocket(client: OpenAI, model: str) -> None:
    headers = {"OpenAI-Beta": BETAS[0]}
    with client.beta.responses.connect(extra_headers=headers) as connection:
        connection.response.create(model=model, input=TREE, multi_agent=AGENTS)
        for event in connection:
            assert event.type != "error", event
            if event.type == "response.completed":
                check(event.response)
                break


@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
def test_an_output_is_injected_into_a_response_that_runs(client: OpenAI, model: str) -> None:
    turns = [spawn("north", {"call": "go"}, {"say": "Gone."}), WAIT, WAIT, {"say": "Done."}]
    headers = {"OpenAI-Beta": BETAS[0]}
    with client.beta.responses.connect(extra_headers=headers) as connection:
        connection.response.create(
            model=model, input=script(*turns), multi_agent=AGENTS, tools=[GO]
        )
        kinds = []
        for event in connection:
            kinds.append(event.type)
            assert event.type != "error", event
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_item.done" and event.item.type == "function_call":
                output: Any = {
                    "type": "function_call_output",
                    "call_id": event.item.call_id,
                    "output": "{}",
                }
                connection.response.inject(response_id=response_id, input=[output])
            if event.type == "response.completed":
                beta.BetaResponse.model_validate(event.response.to_dict(mode="json"), strict=False)
                break
    assert "response.inject.created" in kinds
    final = [item for item in event.response.output if item.type == "message"][-1]
    assert final.content[0].text == "Done."  # type: ignore[union-attr]
