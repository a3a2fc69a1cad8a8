"""Images from a server of the images API: what it is asked, and whatever it answers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.images_server import FakeImages, drawing, encoded, image_for

from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.upstreams.images_api import UNAVAILABLE, HttpImageGenerator
from antiphon.application.ports import MadeImage, SourceImage
from antiphon.application.support.bytes_in_work import draw_on
from antiphon.domain.errors import ConcurrencyLimitExceeded, ImageError
from antiphon.entrypoints.wiring.webhooks import operator_policy
from antiphon.testing.images import an_image_request, make_images

CAT, HAT = (SourceImage(content=image_for(name), media_type="image/png") for name in ("cat", "hat"))
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
MAX_BYTES = 100_000


@pytest.fixture
def server() -> Iterator[FakeImages]:
    with drawing() as fake:
        yield fake


@pytest.fixture
def generator(server: FakeImages) -> HttpImageGenerator:
    return connect(server.url)


def connect(url: str, **options: Any) -> HttpImageGenerator:
    pools = GuardedPools(operator_policy([url]))
    options = {"model": "small", "api_key": "secret", "max_bytes": MAX_BYTES, **options}
    return HttpImageGenerator(url, pools=pools, **options)


async def refused(generator: HttpImageGenerator, **fields: Any) -> ImageError:
    with pytest.raises(ImageError) as raised:
        await make_images(generator, an_image_request(**fields))
    return raised.value


# --- what the server is asked ---


async def test_a_prompt_is_sent_with_the_model_and_the_key(
    generator: HttpImageGenerator, server: FakeImages
) -> None:
    [image] = await make_images(generator, an_image_request("A cat."))
    assert image == MadeImage(
        content=image_for("A cat."), quality="medium", background="opaque", revised_prompt=None
    )
    assert server.keys == ["Bearer secret"]
    assert server.asked == [
        (
            "/v1/images/generations",
            {"model": "small", "prompt": "A cat.", "n": 1, "response_format": "b64_json"},
        )
    ]


async def test_what_the_request_sets_is_sent_as_it_is(
    generator: HttpImageGenerator, server: FakeImages
) -> None:
    options: dict[str, Any] = {
        "size": "32x16",
        "quality": "high",
        "background": "transparent",
        "output_format": "webp",
        "output_compression": 0,
        "moderation": "low",
    }
    await make_images(generator, an_image_request(**options))
    assert options.items() <= server.asked[0][1].items()


async def test_drafts_are_streamed(generator: HttpImageGenerator, server: FakeImages) -> None:
    images = await make_images(generator, an_image_request("A cat.", partial_images=2))
    drafts = [image_for("A cat.", tiles=count) for count in (1, 2)]
    assert [image.content for image in images] == [*drafts, image_for("A cat.")]
    assert [image.is_partial for image in images] == [True, True, False]
    assert {"stream": True, "partial_images": 2}.items() <= server.asked[0][1].items()


async def test_an_edit_is_a_form_with_the_images_and_the_mask(
    generator: HttpImageGenerator, server: FakeImages
) -> None:
    request = an_image_request(
        'Größer,\r\n"bitte".', action="edit", images=[CAT, HAT], mask=HAT, partial_images=1
    )
    await make_images(generator, request)
    path, fields = server.asked[0]
    assert path == "/v1/images/edits"
    assert fields == {
        "model": "small",
        "prompt": 'Größer,\r\n"bitte".',
        "n": "1",
        "response_format": "b64_json",
        "stream": "true",
        "partial_images": "1",
    }
    assert server.files == [
        [
            ("image[]", "image/png", CAT.content),
            ("image[]", "image/png", HAT.content),
            ("mask", "image/png", HAT.content),
        ]
    ]


async def test_a_single_image_is_no_list(generator: HttpImageGenerator, server: FakeImages) -> None:
    await make_images(generator, an_image_request(action="edit", images=[CAT]))
    assert server.files == [[("image", "image/png", CAT.content)]]


@pytest.mark.parametrize("field", ["response_format", "stream", "partial_images"])
async def test_a_field_of_ours_that_the_server_refuses_is_never_sent_again(
    generator: HttpImageGenerator, server: FakeImages, field: str
) -> None:
    server.refused = {field}
    for _ in range(2):
        images = await make_images(generator, an_image_request("A cat.", partial_images=1))
        assert images[-1].content == image_for("A cat.")
    assert [field in fields for _, fields in server.asked] == [True, False, False]


async def test_a_field_of_the_request_that_the_server_refuses_is_told_to_the_model(
    generator: HttpImageGenerator, server: FakeImages
) -> None:
    server.refused = {"background", "response_format"}
    error = await refused(generator, background="transparent")
    assert str(error) == "The image generator refuses: Unknown parameter: 'background'."
    assert (error.code, error.is_unreachable) == ("unknown_parameter", False)


# --- what the server answers ---


def refusal(message: Any, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "message", "code"),
    [
        (400, refusal("Blocked.", code="moderation_blocked"), "Blocked.", "moderation_blocked"),
        (422, refusal("Too\n many  pixels."), "Too many pixels.", "invalid_value"),
        (403, refusal("x" * 9000), "x" * 500, "invalid_value"),
        (413, b"<html>", "it gives no reason", "invalid_value"),
        (400, refusal({"a": 1}, code=7), "it gives no reason", "invalid_value"),
        (400, b'{"error": "no"}', "it gives no reason", "invalid_value"),
        (400, refusal("x" * 100_000), "it gives no reason", "invalid_value"),
    ],
)
async def test_a_refusal_is_told_to_the_model_with_its_reason(
    generator: HttpImageGenerator,
    server: FakeImages,
    status: int,
    body: bytes,
    message: str,
    code: str,
) -> None:
    server.answer = (status, JSON, body)
    error = await refused(generator)
    assert str(error) == f"The image generator refuses: {message}"
    assert (error.code, error.is_unreachable) == (code, False)


def events(*each: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in each)


async def test_a_refusal_may_come_in_the_stream(
    generator: HttpImageGenerator, server: FakeImages
) -> None:
    error = {"message": "Blocked.", "code": "moderation_blocked"}
    server.answer = (200, EVENTS, events({"type": "error", "error": error}))
    raised = await refused(generator, partial_images=1)
    assert (str(raised), raised.code) == (
        "The image generator refuses: Blocked.",
        "moderation_blocked",
    )


INVALID: dict[str, tuple[int, dict[str, str], bytes]] = {
    "an error": (500, JSON, b"oops"),
    "a wrong key": (401, JSON, refusal("Incorrect API key: secret")),
    "a busy server": (429, JSON, refusal("Later.")),
    "a redirect": (307, {}, b""),
    "nothing": (200, JSON, b""),
    "no JSON": (200, JSON, b"<html>"),
    "another shape": (200, JSON, b'{"images": []}'),
    "no image": (200, JSON, b'{"data": []}'),
    "an address": (200, JSON, b'{"data": [{"url": "http://127.0.0.1/a.png"}]}'),
    "a number": (200, JSON, b'{"data": [{"b64_json": 7}]}'),
    "no base64": (200, JSON, b'{"data": [{"b64_json": "a"}]}'),
    "compressed": (200, {**JSON, "content-encoding": "gzip"}, b"\x1f\x8b"),
    "an event that is no JSON": (200, EVENTS, b"data: {\n\n"),
    "an event without an image": (200, EVENTS, events({"type": "image_generation.completed"})),
}


@pytest.mark.parametrize("answer", INVALID.values(), ids=INVALID)
async def test_every_invalid_answer_is_the_same_error_and_a_line_in_the_log(
    generator: HttpImageGenerator,
    server: FakeImages,
    answer: tuple[int, dict[str, str], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.answer = answer
    with caplog.at_level(logging.WARNING, "antiphon.images"):
        error = await refused(generator, partial_images=1)
    assert (str(error), error.is_unreachable) == (UNAVAILABLE, True)
    assert len(caplog.records) == 1
    assert server.url in caplog.text
    assert "secret" not in caplog.text


async def test_a_stream_without_an_image_has_none(
    generator: HttpImageGenerator, server: FakeImages
) -> None:
    server.answer = (200, EVENTS, b": ping\n\ndata: [DONE]\n\n" + events({"type": "keepalive"}))
    assert await make_images(generator, an_image_request(partial_images=1)) == []


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    error = await refused(connect("http://127.0.0.1:1/v1"))
    assert (error.code, error.is_unreachable) == ("unavailable", True)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_image_that_is_too_large_is_not_read_to_its_end(
    generator: HttpImageGenerator, server: FakeImages, streams: bool
) -> None:
    image = encoded(b"x" * 4 * MAX_BYTES)
    if streams:
        server.answer = (200, EVENTS, events({"type": "image_edit.completed", "b64_json": image}))
    else:
        body = json.dumps({"data": [{"b64_json": image}]}).encode()
        server.answer = (200, JSON, body)
    error = await refused(generator, partial_images=1)
    assert error.code == "image_too_large"
    assert not error.is_unreachable


async def test_a_stream_has_an_end(generator: HttpImageGenerator, server: FakeImages) -> None:
    server.answer = (200, EVENTS, b": ping\n" * MAX_BYTES)
    error = await refused(generator, partial_images=1)
    assert error.code == "image_too_large"


async def test_an_answer_counts_before_it_is_read(
    generator: HttpImageGenerator, server: FakeImages
) -> None:
    drawn: list[int] = []

    async def draw(size: int) -> None:
        drawn.append(size)
        if len(drawn) > 1:
            raise ConcurrencyLimitExceeded("There is no room.", code="rate_limit_exceeded")

    async def make_two() -> ImageError:
        draw_on(draw)
        await make_images(generator, an_image_request())
        return await refused(generator)

    error = await asyncio.create_task(make_two())
    assert (str(error), error.code) == ("There is no room.", "rate_limit_exceeded")
    assert 0 < drawn[0] == drawn[1] <= 4 * MAX_BYTES
