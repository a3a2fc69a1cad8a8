"""Images of the Agents SDK's tool and of OpenAI's own client, from a server that draws."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI

sdk: Any = pytest.importorskip("agents", reason="make test-clients installs openai-agents")
pytestmark = pytest.mark.clients
Script = Callable[..., str]

IMAGE = "image_generation_call"


@pytest.fixture
def drawn(serve: Any) -> Iterator[Any]:
    with serve(image_generator="scripted", store="sqlite") as server:
        yield server


@pytest.fixture
async def artist(drawn: Any, model: str) -> AsyncIterator[Callable[..., Any]]:
    """Make an agent of that server; it draws."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=drawn.api, api_key="none", max_retries=0, timeout=15)
    served = sdk.OpenAIResponsesModel(model=model, openai_client=client)
    sdk.set_tracing_disabled(True)

    def make(settings: Any = None, **config: Any) -> Any:
        tool = sdk.ImageGenerationTool(tool_config={"type": "image_generation", **config})
        settings = settings or sdk.ModelSettings()
        return sdk.Agent(name="Artist", model=served, tools=[tool], model_settings=settings)

    yield make
    await client.close()


def draw(prompt: str, **arguments: Any) -> dict[str, Any]:
    return {"call": "image_generation", "args": {"prompt": prompt, **arguments}}


def images_of(result: Any) -> list[Any]:
    raw = [item.raw_item for item in result.new_items]
    return [item for item in raw if getattr(item, "type", None) == IMAGE]


async def test_an_agent_draws(artist: Any, script: Script) -> None:
    asked = script(draw("A cat."), draw("@@fail Too blue."), {"say": "Here."})
    result = await sdk.Runner.run(artist(quality="low", size="32x16"), asked)
    assert result.final_output == "Here."
    cat, failed = images_of(result)
    assert (cat.status, cat.size, failed.status) == ("completed", "32x16", "failed")
    assert base64.b64decode(cat.result).startswith(b"\x89PNG")


async def test_an_agent_streams_drafts(artist: Any, script: Script) -> None:
    asked = script(draw("A cat."), {"say": "Here."})
    stream = sdk.Runner.run_streamed(artist(partial_images=2), asked)
    drafts = [
        event.data.partial_image_index
        async for event in stream.stream_events()
        if event.type == "raw_response_event"
        and event.data.type == "response.image_generation_call.partial_image"
    ]
    assert drafts == [0, 1]
    assert stream.final_output == "Here."
    assert [image.status for image in images_of(stream)] == ["completed"]


async def test_a_session_keeps_images_to_edit(artist: Any, script: Script) -> None:
    session = sdk.SQLiteSession("images")
    await sdk.Runner.run(artist(), script(draw("A cat."), {"say": "Here."}), session=session)
    asked = script(draw("Bluer.", action="edit"), {"say": "Bluer."})
    result = await sdk.Runner.run(artist(), asked, session=session)
    [edited] = images_of(result)
    assert (edited.status, edited.action, result.final_output) == ("completed", "edit", "Bluer.")


# A model without a script calls again when the image comes as a user's, as it does behind servers.
@pytest.mark.parametrize("model", ["scripted-chat", "scripted-harmony"])
async def test_an_agent_can_be_made_to_draw(artist: Any) -> None:
    forced = artist(sdk.ModelSettings(tool_choice="image_generation"))
    result = await sdk.Runner.run(forced, "A cat!")
    assert [image.status for image in images_of(result)] == ["completed"]


def test_the_official_client_streams_resumes_and_names_an_image_by_its_id(
    drawn: Any, model: str, script: Script
) -> None:
    asked = script(draw("A cat."), {"say": "Here."})
    tool: Any = {"type": "image_generation", "partial_images": 1}
    with OpenAI(base_url=drawn.api, api_key="none", max_retries=0) as client:
        with client.responses.stream(model=model, input=asked, tools=[tool]) as stream:
            events = [*stream]
            final = stream.get_final_response()
        kinds = [event.type for event in events if IMAGE in event.type]
        steps = ("in_progress", "generating", "partial_image", "completed")
        assert kinds == [f"response.{IMAGE}.{step}" for step in steps]
        for after in (0, 5, len(events) - 2):
            resumed = client.responses.retrieve(final.id, stream=True, starting_after=after)
            numbers = [event.sequence_number for event in resumed]
            assert numbers == list(range(after + 1, len(events)))
        [image] = [item for item in final.output if item.type == IMAGE]
        assert [item for item in client.responses.retrieve(final.id).output if item == image]
        history: Any = [
            {"type": IMAGE, "id": image.id},
            {"role": "user", "content": script(draw("Bluer.", action="edit"), {"say": "ok"})},
        ]
        again = client.responses.create(model=model, input=history, tools=[tool])
        assert [item.status for item in again.output if item.type == IMAGE] == ["completed"]
