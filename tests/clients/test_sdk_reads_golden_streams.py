"""The official SDK takes every golden stream: its types fit, and its accumulator agrees with us."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

STREAMS = Path(__file__).parents[1] / "golden" / "streams"
CASES = sorted(folder.name for folder in STREAMS.iterdir())
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    """A client whose server answers with the recorded bytes."""
    body = (STREAMS / request.param / "stream.sse").read_bytes()
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
    for frame in (STREAMS / name / "stream.sse").read_text().split("\n\n")[:-1]:
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
        assert stream.get_final_response().id == final.response.id == "resp_1"
