"""The official SDK takes every golden stream and flow: its types fit, its accumulator agrees."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = {
    str(file.relative_to(GOLDEN)): file
    for file in sorted([*GOLDEN.glob("streams/*/stream.sse"), *GOLDEN.glob("flows/*.sse")])
}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    """A client whose server answers with the recorded bytes."""
    body = CASES[request.param].read_bytes()
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=body))
    with OpenAI(
        base_url="http://127.0.0.1/v1",
        api_key="none",
        http_client=httpx.Client(transport=transport),
    ) as client:
        yield client


@pytest.mark.parametrize("name", CASES)
def test_every_event_has_the_type_that_the_sdk_declares(name: str) -> None:
    for frame in CASES[name].read_text().split("\n\n")[:-1]:
        EVENT.validate_python(json.loads(frame.partition("data: ")[2]))


@pytest.mark.parametrize(("replay", "name"), [(n, n) for n in CASES], indirect=["replay"])
def test_the_accumulator_ends_with_the_final_response(replay: OpenAI, name: str) -> None:
    with replay.responses.stream(model="m", input="x") as stream:
        events = list(stream)
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    final = events[-1]
    assert final.type in ("response.completed", "response.incomplete", "response.failed")
    if final.type == "response.completed":
        accumulated = stream.get_final_response()
        assert accumulated.id == final.response.id
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert shown(accumulated.output) == shown(final.response.output) == shown(done)


def shown(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the items without what the SDK adds where it parses them."""
    told = [item.model_dump(mode="json", exclude_unset=True) for item in items]
    for item in told:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return told
