"""Sub-agents over HTTP: a model starts other responses, sends them messages and waits for them.

What happens when servers are killed is in tests/faults/kills/test_killed_agents.py, and what
OpenAI's client makes of them in tests/clients/test_multi_agent.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, frames, script

Json = dict[str, Any]

BETA = {"OpenAI-Beta": "responses_multi_agent=v1"}
AGENTS = {"enabled": True}


@pytest.fixture
def beta(server: Any) -> Iterator[httpx.Client]:
    """A client that knows sub-agents."""
    with httpx.Client(base_url=server.api, timeout=30, headers=BETA) as client:
        yield client


def spawn(name: str, *turns: Any, **arguments: Any) -> Json:
    """A call that starts an agent, whose model plays these turns."""
    return {
        "call": "spawn_agent",
        "args": {"task_name": name, "message": script(*turns), **arguments},
    }


def act(action: str, **arguments: Any) -> Json:
    return {"call": action, "args": arguments}


WAIT = act("wait_agent")


def said(text: str) -> Json:
    return {"say": text}


def told(response: Json) -> list[tuple[str, str, str]]:
    """Return the messages between agents: from whom, to whom, what."""
    return [
        (item["author"], item["recipient"], item["content"][0]["text"])
        for item in response["output"]
        if item["type"] == "agent_message"
    ]


def texts(response: Json) -> list[tuple[str, str]]:
    """Return the messages of the models: whose, and what."""
    return [
        (item["agent"]["agent_name"], item["content"][0]["text"])
        for item in response["output"]
        if item["type"] == "message"
    ]


def outputs(response: Json, action: str) -> list[str]:
    return [
        item["output"][0]["text"]
        for item in response["output"]
        if item["type"] == "multi_agent_call_output" and item["action"] == action
    ]


def ask(client: httpx.Client, model: str, *turns: Any, **fields: Any) -> Json:
    body = {"model": model, "input": script(*turns), "multi_agent": AGENTS, **fields}
    return create(client, **body)


def test_a_model_starts_two_agents_and_answers_with_what_they_say(
    beta: httpx.Client, model: str
) -> None:
    response = ask(
        beta,
        model,
        [spawn("north", said("Snow.")), spawn("south", said("Sun."))],
        WAIT,
        WAIT,
        said("Snow and sun."),
    )
    assert response["status"] == "completed", response
    assert texts(response)[-1] == ("/root", "Snow and sun.")
    assert {("/root/north", "Snow."), ("/root/south", "Sun.")} < set(texts(response))
    assert {
        ("/root/north", "/root", "Snow."),
        ("/root/south", "/root", "Sun."),
    } < set(told(response))


def test_every_item_and_event_names_its_agent_and_the_stream_is_what_is_stored(
    beta: httpx.Client, model: str
) -> None:
    turns = [[{"think": "Hm."}, spawn("north", [{"think": "Brr."}, said("Snow.")])], WAIT]
    body = {
        "model": model,
        "input": script(*turns, said("Snow.")),
        "multi_agent": AGENTS,
        "stream": True,
    }
    events = frames(beta.post("/responses", json=body).text)
    assert {event["agent"]["agent_name"] for event in events} == {"/root", "/root/north"}
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    ended = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert ended["output"] == done
    assert all(item["agent"]["agent_name"].startswith("/root") for item in done)
    assert beta.get(f"/responses/{ended['id']}").json() == ended
    again = frames(beta.get(f"/responses/{ended['id']}", params={"stream": "true"}).text)
    assert again == events
    deltas = [
        event["delta"]
        for event in events
        if event["type"] == "response.output_text.delta"
        and event["agent"]["agent_name"] == "/root/north"
    ]
    assert "".join(deltas) == "Snow."


def test_an_agent_is_a_response_of_its_own_that_the_record_names(
    beta: httpx.Client, model: str
) -> None:
    response = ask(
        beta, model, spawn("north", said("Snow.")), WAIT, said("Done."), include=["metrics"]
    )
    (agent,) = response["metrics"]["agents"]
    assert (agent["name"], agent["status"]) == ("/root/north", "completed")
    child = beta.get(f"/responses/{agent['response_id']}", params={"include[]": "metrics"}).json()
    assert child["background"]
    assert child["metrics"]["agent"] == "/root/north"
    assert child["metrics"]["parent_response_id"] == response["id"]
    assert texts(child) == [("/root/north", "Snow.")]
    # The item is the same one in both.
    assert child["output"][-1] in response["output"]
    own = sum(turn["output_tokens"] for turn in response["metrics"]["turns"])
    assert response["usage"]["output_tokens"] == own + child["usage"]["output_tokens"]
    assert agent["output_tokens"] == child["usage"]["output_tokens"]


def test_an_agent_sees_its_task_and_not_the_conversation(beta: httpx.Client, model: str) -> None:
    response = ask(
        beta,
        model,
        spawn("north", [{"think": "Brr", "repeat": 3}, {"say": "Snow", "repeat": 3}]),
        WAIT,
        said("Done."),
        instructions="Be kind.",
        enable_response_messages=True,
        include=["metrics"],
    )
    child = beta.get(f"/responses/{response['metrics']['agents'][0]['response_id']}").json()
    shown = str(child["input_messages"])
    assert "Message from /root to /root/north:" in shown
    assert "Be kind." in shown
    assert "Done." not in shown
    # What the agent above is shown has no item of the agent below but its message.
    read = str(response["input_messages"])
    assert "Message from /root/north to /root:\\n\\nSnowSnowSnow" in read
    assert read.count("SnowSnowSnow") == 1
    assert "BrrBrrBrr" not in read


@pytest.mark.parametrize(("turns", "seen"), [("none", 0), ("1", 1), ("all", 2)])
def test_an_agent_may_start_with_turns_of_the_conversation(
    beta: httpx.Client, model: str, turns: str, seen: int
) -> None:
    conversation = [
        {"role": "user", "content": "First question."},
        {"role": "assistant", "content": "First answer."},
        {
            "role": "user",
            "content": script(
                spawn("north", said("Snow."), fork_turns=turns), WAIT, said("Second answer.")
            ),
        },
    ]
    response = create(
        beta,
        model=model,
        input=conversation,
        multi_agent=AGENTS,
        enable_response_messages=True,
        include=["metrics"],
    )
    assert texts(response)[-1] == ("/root", "Second answer.")
    child = beta.get(f"/responses/{response['metrics']['agents'][0]['response_id']}").json()
    shown = str(child["input_messages"])
    assert ("First question." in shown) == (seen == 2)
    assert shown.count("Message from /root to /root/north") == 1
    assert shown.count("Snow.") == 1 + min(seen, 1)


def test_a_response_waits_at_its_end_for_agents_that_still_work(
    beta: httpx.Client, model: str
) -> None:
    slow = spawn("north", {"say": "Snow.", "delay": 0.3})
    response = ask(beta, model, slow, said("I go."))
    assert texts(response) == [("/root", "I go."), ("/root/north", "Snow.")]
    assert told(response)[-1] == ("/root/north", "/root", "Snow.")


def test_agents_start_agents_and_all_their_items_come_up(beta: httpx.Client, model: str) -> None:
    inner = spawn("tester", said("It works."))
    response = ask(beta, model, spawn("writer", inner, WAIT, said("Written.")), WAIT, said("Done."))
    assert texts(response) == [
        ("/root/writer/tester", "It works."),
        ("/root/writer", "Written."),
        ("/root", "Done."),
    ]
    assert ("/root/writer/tester", "/root/writer", "It works.") in told(response)
    assert ("/root/writer", "/root", "Written.") in told(response)


def test_a_message_is_read_before_the_next_turn_of_its_recipient(
    beta: httpx.Client, model: str
) -> None:
    long_wait = act("wait_agent", timeout_ms=60_000)
    helper = spawn("helper", {"say": "Helped.", "delay": 1.0})
    response = ask(
        beta,
        model,
        spawn("north", helper, long_wait, said("Got it.")),
        act("send_message", target="north", message="It melts."),
        long_wait,
        said("Done."),
        enable_response_messages=True,
        include=["metrics"],
    )
    assert ("/root", "/root/north", "It melts.") in told(response)
    child = beta.get(f"/responses/{response['metrics']['agents'][-1]['response_id']}").json()
    assert "Message from /root to /root/north:\\n\\nIt melts." in str(child["input_messages"])


def test_agents_beside_one_another_can_send_messages(beta: httpx.Client, model: str) -> None:
    long_wait = act("wait_agent", timeout_ms=60_000)
    listener = spawn(
        "listener", spawn("clock", {"say": "Noon.", "delay": 1.5}), long_wait, said("Heard.")
    )
    speaker = spawn(
        "speaker", act("send_message", target="listener", message="Psst."), said("Told.")
    )
    response = ask(
        beta,
        model,
        [listener, speaker],
        long_wait,
        long_wait,
        said("Done."),
        enable_response_messages=True,
        include=["metrics"],
    )
    assert ("/root/speaker", "/root/listener", "Psst.") in told(response)
    ids = {each["name"]: each["response_id"] for each in response["metrics"]["agents"]}
    heard = beta.get(f"/responses/{ids['/root/listener']}").json()
    assert "Message from /root/speaker to /root/listener" in str(heard["input_messages"])


def test_an_agent_that_has_ended_gets_another_task_and_knows_what_it_knew(
    beta: httpx.Client, model: str
) -> None:
    again = act("followup_task", target="north", message=script(said("Still snow.")))
    response = ask(
        beta,
        model,
        spawn("north", said("Snow.")),
        WAIT,
        again,
        WAIT,
        said("Done."),
        enable_response_messages=True,
        include=["metrics"],
    )
    assert [text for _, text in texts(response)] == ["Snow.", "Still snow.", "Done."]
    first, second = response["metrics"]["agents"]
    assert first["name"] == second["name"]
    assert first["response_id"] != second["response_id"]
    child = beta.get(f"/responses/{second['response_id']}").json()
    assert "Snow." in str(child["input_messages"])


def test_an_agent_that_works_is_interrupted(beta: httpx.Client, model: str) -> None:
    response = ask(
        beta,
        model,
        spawn("north", {"say": "Snow.", "delay": 60}),
        act("interrupt_agent", target="north"),
        act("list_agents"),
        said("Done."),
    )
    assert '"previous_status":"running"' in outputs(response, "interrupt_agent")[0]
    assert '"agent_status":"cancelled"' in outputs(response, "list_agents")[0]
    assert told(response)[-1] == ("/root/north", "/root", "(It was stopped.)")


def test_an_agent_that_fails_is_told_to_the_one_that_started_it(
    beta: httpx.Client, model: str
) -> None:
    response = ask(beta, model, spawn("north", {"fail": "out of memory"}), WAIT, said("A pity."))
    assert response["status"] == "completed"
    sender, recipient, text = told(response)[-1]
    assert (sender, recipient) == ("/root/north", "/root")
    assert text.startswith("(It has failed: ")


def test_a_wait_ends_in_time(beta: httpx.Client, model: str) -> None:
    response = ask(
        beta,
        model,
        spawn("north", {"say": "Snow.", "delay": 0.8}),
        act("wait_agent", timeout_ms=50),
        WAIT,
        said("Done."),
    )
    first, second = outputs(response, "wait_agent")
    assert '"timed_out":true' in first
    assert '"timed_out":false' in second


# --- functions of the client ----------------------------------------------------------------------

GO = {"type": "function", "name": "go", "parameters": {"type": "object", "properties": {}}}


def calls_in(response: Json) -> list[tuple[str, str]]:
    """Return the calls of the client's functions: whose, and which."""
    return [
        (item["agent"]["agent_name"], item["call_id"])
        for item in response["output"]
        if item["type"] == "function_call"
    ]


def answers_to(response: Json) -> list[Json]:
    return [
        {"type": "function_call_output", "call_id": call_id, "output": f"{agent} may go."}
        for agent, call_id in calls_in(response)
    ]


def pausing(client: httpx.Client, model: str, **fields: Any) -> Json:
    """Return a response whose agents north and south wait for the client."""
    north = spawn("north", act("go"), said("North went."))
    south = spawn("south", {"call": "go"}, {"say": "South went.", "delay": 0.2})
    return ask(
        client, model, [north, south], WAIT, WAIT, WAIT, said("All went."), tools=[GO], **fields
    )


@pytest.mark.parametrize("way", ["chain", "items", "conversation"])
def test_agents_go_on_with_the_outputs_that_the_client_sends(
    beta: httpx.Client, model: str, way: str
) -> None:
    more: Json = {}
    if way == "conversation":
        more["conversation"] = beta.post("/conversations", json={}).json()["id"]
    first = pausing(beta, model, **more)
    assert first["status"] == "completed"
    assert sorted(agent for agent, _ in calls_in(first)) == ["/root/north", "/root/south"]
    assert texts(first) == []
    answers = answers_to(first)
    if way == "chain":
        more = {"previous_response_id": first["id"]}
    elif way == "items":
        items = beta.get(f"/responses/{first['id']}/input_items").json()["data"]
        answers = [*items, *first["output"], *answers]
    second = create(
        beta,
        model=model,
        input=answers,
        multi_agent=AGENTS,
        tools=[GO],
        include=["metrics"],
        **more,
    )
    assert sorted(texts(second)[:-1]) == [
        ("/root/north", "North went."),
        ("/root/south", "South went."),
    ]
    assert texts(second)[-1] == ("/root", "All went.")
    assert {each["name"] for each in second["metrics"]["agents"]} == {"/root/north", "/root/south"}


def test_an_agent_below_an_agent_goes_on_with_the_outputs_of_the_client(
    beta: httpx.Client, model: str
) -> None:
    inner = spawn("tester", act("go"), said("Tested."))
    writer = spawn("writer", inner, WAIT, WAIT, said("Written."))
    first = ask(beta, model, writer, WAIT, WAIT, said("Done."), tools=[GO])
    assert [agent for agent, _ in calls_in(first)] == ["/root/writer/tester"]
    second = create(
        beta,
        model=model,
        input=answers_to(first),
        multi_agent=AGENTS,
        tools=[GO],
        previous_response_id=first["id"],
    )
    assert texts(second) == [
        ("/root/writer/tester", "Tested."),
        ("/root/writer", "Written."),
        ("/root", "Done."),
    ]


def test_a_response_with_agents_is_continued_without_them(beta: httpx.Client, model: str) -> None:
    first = ask(beta, model, spawn("north", said("Snow.")), WAIT, said("Done."))
    second = create(
        beta,
        model=model,
        input=script(said("Again.")),
        previous_response_id=first["id"],
        enable_response_messages=True,
    )
    assert [item["type"] for item in second["output"]] == ["message"]
    assert "agent" not in second["output"][0]
    assert "Message from /root/north to /root" in str(second["input_messages"])
