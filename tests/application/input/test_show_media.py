"""What a model for texts is spared, and what one request may take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.adapters.fetching import NoFetcher
from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.stores.files import MemoryFileStore
from antiphon.application.input.media import LoadMedia, MediaLimits
from antiphon.application.ports import Fetcher, FetchResult
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError


class Endless(Fetcher):
    """Every URL hangs; `given_up` counts the fetches that were cancelled."""

    asked = 0
    given_up = 0

    async def fetch(self, url: str, **_: Any) -> FetchResult:
        self.asked += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        raise AssertionError


def asked(*parts: c.MessagePart) -> i.Message:
    return i.Message(role="user", content=parts)


def at(number: int) -> c.InputImage:
    return c.InputImage(image_url=f"https://example.org/{number}.png")


async def refusal(show: LoadMedia, *items: i.AnyItem, reads_images: bool = True) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await show(items, tenant="t", reads_images=reads_images, path_of=lambda _: "input[0]")
    return raised.value


async def test_nothing_is_fetched_for_a_model_that_cannot_see() -> None:
    fetcher = Endless()
    show = LoadMedia(MemoryFileStore(), fetcher, PdfReader())
    error = await refusal(show, asked(c.InputText(text="?"), at(1)), reads_images=False)
    assert (error.param, error.code) == ("input[0].content[1]", "unsupported_value")
    assert fetcher.asked == 0


async def test_fetching_ends_for_all_when_the_time_is_over() -> None:
    fetcher = Endless()
    limits = MediaLimits(timeout_s=0.05)
    show = LoadMedia(MemoryFileStore(), fetcher, PdfReader(), limits=limits)
    error = await refusal(show, asked(*map(at, range(9))))
    assert error.code == "failed_to_download_image"
    assert 0 < fetcher.asked == fetcher.given_up < 9


async def test_one_that_is_wrong_ends_the_others() -> None:
    fetcher = Endless()
    show = LoadMedia(MemoryFileStore(), fetcher, PdfReader())
    wrong = c.InputImage(image_url="data:image/png;base64,!")
    error = await refusal(show, asked(at(1), at(2), wrong))
    assert error.param == "input[0].content[2].image_url"
    await asyncio.sleep(0)
    assert fetcher.asked == fetcher.given_up == 2


async def test_what_holds_no_media_is_left_as_it_is() -> None:
    show = LoadMedia(MemoryFileStore(), NoFetcher(), PdfReader())
    items = [asked(c.InputText(text="Hi")), i.Message(role="user", content="Ho")]
    shown = await show(items, tenant="t", reads_images=False, path_of=lambda _: None)
    assert all(one is other for one, other in zip(shown, items, strict=True))
