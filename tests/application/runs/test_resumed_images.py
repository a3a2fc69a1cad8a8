"""Images of a run that goes on at another server, wherever its server died."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.application.conftest import TENANT
from tests.application.fake_images import FakeImageGenerator
from tests.application.runs.test_resumed_runs import Street, kinds, say, texts, wait_for_end

from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.application.runs.stored_events import log_of
from antiphon.application.tools.calls import LOST
from antiphon.application.tools.image_generation import ImageGenerationProvider
from antiphon.domain import events as e
from antiphon.domain.items import ImageGenerationCall
from antiphon.domain.responses.response import Response

pytestmark = pytest.mark.slow


def images_of(response: Response) -> list[ImageGenerationCall]:
    return [item for item in response.output if isinstance(item, ImageGenerationCall)]


def drawing_of(drafts: int) -> Any:
    return say(
        [
            {"say": "Two cats:"},
            {"call": "image_generation", "args": {"prompt": "A cat."}},
            {"call": "image_generation", "args": {"prompt": "A red cat."}},
        ],
        {"call": "image_generation", "args": {"prompt": "Bluer.", "action": "edit"}},
        {"say": "Here."},
        tools=[{"type": "image_generation", "partial_images": drafts}],
    )


@pytest.fixture
def generator() -> FakeImageGenerator:
    return FakeImageGenerator()


@pytest.fixture(params=["chat", "harmony"])
async def street(
    request: pytest.FixtureRequest, generator: FakeImageGenerator
) -> AsyncIterator[Street]:
    street = Street(request.param, [ImageGenerationProvider(generator, MemoryFileStore())])
    yield street
    await street.close()


@pytest.mark.parametrize("drafts", [0, 2])
async def test_an_image_that_was_made_is_not_made_again(
    street: Street, generator: FakeImageGenerator, drafts: int
) -> None:
    body = drawing_of(drafts)
    whole = await street.run(**body)
    assert [image.status for image in images_of(whole)] == ["completed"] * 3
    for writes in range(await street.count_writes(**body)):
        house, store = await street.add(writes)
        created = await house.create(background=True, **body)
        if not await street._dies(store, created.id):
            continue  # on a busy machine, it is written in fewer portions
        logged = await log_of(street.store, TENANT, created.id)
        done = [each.item for each in logged if isinstance(each, e.ItemDone)]
        made = {item.revised_prompt for item in done if isinstance(item, ImageGenerationCall)}
        await street.store.end_heartbeat(house.owner)
        other, _ = await street.add()
        generator.asked.clear()
        assert await other.start_background_runs.run_once() == 1
        response = await wait_for_end(street.store, created.id)
        assert response.status == "completed", response.error
        assert (kinds(response), texts(response)) == (kinds(whole), texts(whole))
        assert made.isdisjoint(request.prompt for request in generator.asked)
        for image, expected in zip(images_of(response), images_of(whole), strict=True):
            if image.status == "failed":
                assert drafts
                assert image.error["message"] == LOST
            else:
                assert image.revised_prompt == expected.revised_prompt
        edits = [request for request in generator.asked if request.action == "edit"]
        results = [image.result for image in images_of(response)[:2] if image.result]
        for edit in edits:
            sources = [base64.b64encode(image.content).decode() for image in edit.images]
            assert sources == results[::-1]
