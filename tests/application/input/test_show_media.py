"""Loading media: models without vision, the time limit, and errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.url_policy import NoFetcher
from antiphon.application.input.media import LoadMedia, MediaLimits
from antiphon.application.ports import Fetcher, FetchResult
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.access.limits import FULL_ACCESS
from antiphon.domain.errors import RequestError


class HangingFetcher(Fetcher):
    """Every URL hangs; `started` and `cancelled` count the fetches."""

    started = 0
    cancelled = 0

    async def fetch(self, url: str, **_: Any) -> FetchResult:
        self.started += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


def message(*parts: c.MessagePart) -> i.Message:
    return i.Message(role="user", content=parts)


def image(number: int) -> c.InputImage:
    return c.InputImage(image_url=f"https://example.org/{number}.png")


async def error_of(show: LoadMedia, *items: i.AnyItem, reads_images: bool = True) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await show(
            items,
            tenant="t",
            policy=FULL_ACCESS,
            reads_images=reads_images,
            path_of=lambda _: "input[0]",
        )
    return raised.value


async def test_nothing_is_fetched_for_a_model_without_vision() -> None:
    fetcher = HangingFetcher()
    show = LoadMedia(MemoryFileStore(), fetcher, PdfReader())
    error = await error_of(show, message(c.InputText(text="?"), image(1)), reads_images=False)
    assert (error.param, error.code) == ("input[0].content[1]", "unsupported_value")
    assert fetcher.started == 0


async def test_the_time_limit_cancels_all_fetches() -> None:
    fetcher = HangingFetcher()
    limits = MediaLimits(timeout_s=0.05)
    show = LoadMedia(MemoryFileStore(), fetcher, PdfReader(), limits=limits)
    error = await error_of(show, message(*map(image, range(9))))
    assert error.code == "failed_to_download_image"
    assert 0 < fetcher.started == fetcher.cancelled < 9


async def test_one_invalid_image_cancels_the_other_fetches() -> None:
    fetcher = HangingFetcher()
    show = LoadMedia(MemoryFileStore(), fetcher, PdfReader())
    invalid = c.InputImage(image_url="data:image/png;base64,!")
    error = await error_of(show, message(image(1), image(2), invalid))
    assert error.param == "input[0].content[2].image_url"
    await asyncio.sleep(0)
    assert fetcher.started == fetcher.cancelled == 2


async def test_items_without_media_are_not_changed() -> None:
    show = LoadMedia(MemoryFileStore(), NoFetcher(), PdfReader())
    items = [message(c.InputText(text="Hi")), i.Message(role="user", content="Ho")]
    shown = await show(
        items, tenant="t", policy=FULL_ACCESS, reads_images=False, path_of=lambda _: None
    )
    assert all(one is other for one, other in zip(shown, items, strict=True))
