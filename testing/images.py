"""Contract tests for the port `ImageGenerator`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any

import pytest

from antiphon.application.ports import ImageGenerator, ImageRequest, MadeImage, SourceImage
from antiphon.domain.errors import ImageError
from antiphon.domain.image_info import image_info_of

PROMPT = "A red circle on white paper."


def an_image_request(prompt: str = PROMPT, **fields: Any) -> ImageRequest:
    return ImageRequest(prompt=prompt, tenant="us", **fields)


async def make_images(generator: ImageGenerator, request: ImageRequest) -> Sequence[MadeImage]:
    """Return the drafts and the image, as the server reads them: nothing after the image."""
    images: list[MadeImage] = []
    async with aclosing(generator.generate(request)) as made:
        async for image in made:
            images.append(image)
            if not image.is_partial:
                break
    return images


def as_source(image: MadeImage) -> SourceImage:
    info = image_info_of(image.content)
    assert info is not None
    return SourceImage(content=image.content, media_type=info.media_type)


@pytest.mark.asyncio
class ImageGeneratorContract:
    """Subclass it where pytest collects tests. `size` is one that your generator makes.

    class TestMyImages(ImageGeneratorContract):
        size = "512x512"

        @pytest_asyncio.fixture
        async def generator(self):
            generator = MyImages()
            await generator.start()
            yield generator
            await generator.aclose()
    """

    size = "1024x1024"

    @pytest.fixture
    def generator(self) -> ImageGenerator:
        raise NotImplementedError("override this fixture: return your generator, started")

    async def test_a_prompt_becomes_one_image_and_no_drafts(
        self, generator: ImageGenerator
    ) -> None:
        [image] = await make_images(generator, an_image_request())
        assert not image.is_partial
        assert image_info_of(image.content) is not None

    async def test_an_image_has_the_size_that_is_wanted(self, generator: ImageGenerator) -> None:
        [image] = await make_images(generator, an_image_request(size=self.size))
        info = image_info_of(image.content)
        assert info is not None
        assert f"{info.width}x{info.height}" == self.size

    @pytest.mark.parametrize("count", [1, 3])
    async def test_drafts_are_images_and_come_before_the_image(
        self, generator: ImageGenerator, count: int
    ) -> None:
        images = await make_images(generator, an_image_request(partial_images=count))
        assert [image.is_partial for image in images] == [True] * (len(images) - 1) + [False]
        assert all(image_info_of(image.content) for image in images)

    async def test_an_image_can_be_edited_with_a_mask_and_without(
        self, generator: ImageGenerator
    ) -> None:
        [image] = await make_images(generator, an_image_request(size=self.size))
        source = as_source(image)
        for mask in (None, source):
            [edited] = await make_images(
                generator,
                an_image_request("Make it blue.", action="edit", images=[source], mask=mask),
            )
            assert image_info_of(edited.content) is not None

    @pytest.mark.parametrize("prompt", [" ", "\x00", "word " * 6000, "🍀\u2028\n", '"}{'])
    async def test_any_prompt_becomes_an_image_or_an_error_for_the_model(
        self, generator: ImageGenerator, prompt: str
    ) -> None:
        contents: list[bytes] = []
        with suppress(ImageError):
            contents += [
                image.content for image in await make_images(generator, an_image_request(prompt))
            ]
        assert all(image_info_of(content) is not None for content in contents)

    async def test_images_are_made_side_by_side(self, generator: ImageGenerator) -> None:
        prompts = [f"The number {number}." for number in range(3)]
        made = await asyncio.gather(
            *(make_images(generator, an_image_request(prompt)) for prompt in prompts)
        )
        assert all(image_info_of(images[-1].content) for images in made)

    async def test_a_cancelled_request_does_not_affect_the_others(
        self, generator: ImageGenerator
    ) -> None:
        leaving, staying = (
            asyncio.create_task(make_images(generator, an_image_request())) for _ in range(2)
        )
        await asyncio.sleep(0)
        leaving.cancel()
        assert not (await staying)[-1].is_partial
        await asyncio.wait([leaving])
        assert not (await make_images(generator, an_image_request()))[-1].is_partial

    async def test_a_reader_may_leave_after_a_draft(self, generator: ImageGenerator) -> None:
        async with aclosing(generator.generate(an_image_request(partial_images=3))) as made:
            await anext(made)
        assert not (await make_images(generator, an_image_request()))[-1].is_partial
