"""The images of a response, whatever the request sets, the model writes and the generator makes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from msgspec import convert
from tests.application.conftest import TENANT, House
from tests.application.fake_images import DRAFT, PNG, FakeImageGenerator

from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.application.ports import Json, MadeImage, StoredFile
from antiphon.application.tools.budgets import Budgets
from antiphon.application.tools.image_generation import (
    INVALID_ARGUMENTS,
    LONG_PROMPT,
    MAX_SOURCE_IMAGES,
    NO_IMAGE,
    NOT_AN_IMAGE,
    NOTHING_TO_EDIT,
    ImageGenerationCaller,
    ImageGenerationProvider,
    ImageLimits,
)
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.content import InputImage, InputText
from antiphon.domain.errors import ImageError, RequestError
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.tools import IMAGE_GENERATION, TOOL_TYPES

LIMITS = ImageLimits(timeout_s=5.0, max_bytes=2000, max_pixels=10_000)
IMPATIENT = ImageLimits(timeout_s=0.02)


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def data_url(content: bytes) -> str:
    return f"data:image/png;base64,{in_base64(content)}"


def picture(number: int) -> bytes:
    return PNG + bytes([number])


@pytest.fixture
def generator() -> FakeImageGenerator:
    return FakeImageGenerator()


@pytest.fixture
async def files() -> MemoryFileStore:
    store = MemoryFileStore()
    for name, content in (("file_mask", PNG), ("file_text", b"no image"), ("file_large", PNG * 99)):
        file = StoredFile(id=name, filename="f", purpose="vision", bytes=len(content), created_at=1)
        await store.create_file(TENANT, file, content)
    return store


async def open_caller(
    generator: FakeImageGenerator,
    *items: i.Item,
    files: MemoryFileStore | None = None,
    limits: ImageLimits = LIMITS,
    **fields: Any,
) -> ImageGenerationCaller:
    tool = convert({"type": "image_generation", **fields}, TOOL_TYPES["image_generation"])
    definitions = [ToolDefinition(tool=tool, path="tools[0]")]  # type: ignore[arg-type]
    provider = ImageGenerationProvider(generator, files or MemoryFileStore(), limits=limits)
    assert provider.handles(tool)  # type: ignore[arg-type]
    callers = await provider.callers(definitions, items, tenant=TENANT)
    assert set(callers) == {IMAGE_GENERATION}
    caller = callers[IMAGE_GENERATION]
    assert isinstance(caller, ImageGenerationCaller)
    return caller


async def call(
    caller: ImageGenerationCaller, raw_arguments: str | None = None, **arguments: Any
) -> tuple[list[d.ToolProgress], d.ToolEnd]:
    """Return the drafts and the end of a call."""
    written = json.dumps(arguments) if raw_arguments is None else raw_arguments
    start = d.CallStart(IMAGE_GENERATION, kind=IMAGE_GENERATION)
    assert caller.open_item(start) == d.ToolStart("image_generation_call", {})
    deltas: list[Any] = [each async for batch in caller.call(start, written) for each in batch]
    assert all(isinstance(each, d.ToolProgress) for each in deltas[:-1])
    assert isinstance(deltas[-1], d.ToolEnd)
    return deltas[:-1], deltas[-1]


def message_of(end: d.ToolEnd) -> str:
    assert end.status == "failed"
    assert end.fields["error"]["type"] == "image_generation_error"
    return str(end.fields["error"]["message"])


# --- what is made ---


async def test_an_image_is_shown_with_what_is_true_of_its_file(
    generator: FakeImageGenerator,
) -> None:
    generator.makes = [MadeImage(content=PNG, quality="high")]
    caller = await open_caller(generator, size="1024x1024", background="opaque")
    drafts, end = await call(caller, prompt="A cat.")
    assert drafts == []
    assert end == d.ToolEnd(
        "completed",
        {
            "result": in_base64(PNG),
            "size": "8x4",
            "output_format": "png",
            "quality": "high",
            "background": "opaque",
            "revised_prompt": "A cat.",
            "action": "generate",
        },
    )


async def test_a_generator_may_say_which_prompt_it_used(generator: FakeImageGenerator) -> None:
    generator.makes = [MadeImage(content=PNG, revised_prompt="A cat, in oil.")]
    _, end = await call(await open_caller(generator), prompt="A cat.")
    assert end.fields["revised_prompt"] == "A cat, in oil."


@pytest.mark.parametrize(("wanted", "shown"), [(0, 0), (1, 1), (3, 2)])
async def test_at_most_the_wanted_drafts_are_shown(
    generator: FakeImageGenerator, wanted: int, shown: int
) -> None:
    generator.makes = [MadeImage(content=DRAFT, is_partial=True)] * 2 + [MadeImage(content=PNG)]
    drafts, end = await call(await open_caller(generator, partial_images=wanted), prompt="A cat.")
    assert generator.asked[0].partial_images == wanted
    assert [draft.step for draft in drafts] == ["partial_image"] * shown
    assert [draft.fields["partial_image_index"] for draft in drafts] == list(range(shown))
    assert {draft.fields["partial_image_b64"] for draft in drafts} <= {in_base64(DRAFT)}
    assert end.status == "completed"


async def test_nothing_is_read_after_the_image(generator: FakeImageGenerator) -> None:
    generator.makes = [MadeImage(content=PNG), ImageError("never seen"), None]
    _, end = await call(await open_caller(generator), prompt="A cat.")
    assert end.status == "completed"
    assert generator.left == 1


async def test_the_options_of_the_request_reach_the_generator(
    generator: FakeImageGenerator,
) -> None:
    generator.makes = [MadeImage(content=PNG)]
    options: Json = {
        "size": "640x480",
        "quality": "low",
        "background": "transparent",
        "output_format": "webp",
        "output_compression": 50,
        "moderation": "low",
    }
    await call(await open_caller(generator, **options), prompt="A cat.")
    asked = generator.asked[0]
    assert {name: getattr(asked, name) for name in options} == options
    assert (asked.tenant, asked.prompt, asked.action) == (TENANT, "A cat.", "generate")


async def test_auto_leaves_the_choice_to_the_generator(generator: FakeImageGenerator) -> None:
    names = ("size", "quality", "background", "moderation", "action")
    caller = await open_caller(generator, **dict.fromkeys(names, "auto"))
    await call(caller, prompt="A cat.")
    asked = generator.asked[0]
    assert (asked.size, asked.quality, asked.background, asked.moderation) == (None,) * 4


# --- what a request may set ---


@pytest.mark.parametrize(
    ("fields", "param", "supported"),
    [
        ({"action": "draw"}, "action", "'auto', 'generate', 'edit'"),
        ({"size": "large"}, "size", "'WIDTHxHEIGHT'"),
        ({"size": "0x10"}, "size", "'WIDTHxHEIGHT'"),
        ({"size": "100000x10"}, "size", "'WIDTHxHEIGHT'"),
        ({"quality": "best"}, "quality", "'high'"),
        ({"background": "red"}, "background", "'transparent'"),
        ({"output_format": "svg"}, "output_format", "'png', 'jpeg', 'webp'"),
        ({"output_compression": 101}, "output_compression", "0 to 100"),
        ({"moderation": "off"}, "moderation", "'low'"),
        ({"input_fidelity": "exact"}, "input_fidelity", "'low', 'high'"),
        ({"input_image_mask": {}}, "input_image_mask", "'image_url' or a 'file_id'"),
        ({"input_image_mask": {"file_id": "none"}}, "input_image_mask.file_id", "no file 'none'"),
        ({"input_image_mask": {"file_id": "file_text"}}, "input_image_mask.file_id", "not a PNG"),
        ({"input_image_mask": {"file_id": "file_large"}}, "input_image_mask.file_id", "2000 bytes"),
        ({"input_image_mask": {"image_url": "aGk="}}, "input_image_mask.image_url", "not a PNG"),
        (
            {"input_image_mask": {"image_url": "https://a.example/mask.png"}},
            "input_image_mask.image_url",
            "data URL or base64",
        ),
    ],
)
async def test_an_invalid_option_is_refused_with_its_path(
    generator: FakeImageGenerator, files: MemoryFileStore, fields: Json, param: str, supported: str
) -> None:
    with pytest.raises(RequestError) as refused:
        await open_caller(generator, files=files, **fields)
    assert refused.value.param == f"tools[0].{param}"
    assert supported in refused.value.message


async def test_a_mask_of_another_tenant_is_not_found(
    generator: FakeImageGenerator, files: MemoryFileStore
) -> None:
    provider = ImageGenerationProvider(generator, files)
    tool: Any = convert(
        {"type": "image_generation", "input_image_mask": {"file_id": "file_mask"}},
        TOOL_TYPES["image_generation"],
    )
    with pytest.raises(RequestError, match="no file"):
        await provider.callers([ToolDefinition(tool=tool, path="tools[0]")], [], tenant="them")


# --- what a model may write ---


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("", INVALID_ARGUMENTS),
        ("nonsense", INVALID_ARGUMENTS),
        ("[1]", INVALID_ARGUMENTS),
        ('{"prompt": 7}', INVALID_ARGUMENTS),
        ('{"prompt": " "}', INVALID_ARGUMENTS),
        (json.dumps({"prompt": "x" * 32_001}), LONG_PROMPT),
        ('{"prompt": "Bluer.", "action": "edit"}', NOTHING_TO_EDIT),
    ],
)
async def test_wrong_arguments_are_told_to_the_model(
    generator: FakeImageGenerator, arguments: str, reason: str
) -> None:
    _, end = await call(await open_caller(generator), arguments)
    assert message_of(end) == reason
    assert generator.asked == []


async def test_what_else_a_model_writes_is_left_out(generator: FakeImageGenerator) -> None:
    caller = await open_caller(generator)
    _, end = await call(caller, prompt="A cat.", action="paint", size="9x9", n=4)
    assert (end.status, generator.asked[0].action, generator.asked[0].size) == (
        "completed",
        "generate",
        None,
    )


# --- edits ---


def shown_by_user(*contents: bytes) -> i.Message:
    parts = [InputImage(image_url=data_url(content)) for content in contents]
    return i.Message(role="user", content=(InputText(text="Look."), *parts))


def made(content: bytes) -> i.ImageGenerationCall:
    return i.ImageGenerationCall(id="ig_1", status="completed", result=in_base64(content))


async def test_an_edit_gets_the_images_of_the_newest_item_first(
    generator: FakeImageGenerator,
) -> None:
    output = i.FunctionCallOutput(
        call_id="call_1", output=(InputImage(image_url=data_url(picture(4))),)
    )
    conversation = [
        made(picture(1)),
        shown_by_user(picture(2), picture(3)),
        output,
        i.Message(role="user", content="Bluer."),
        i.ImageGenerationCall(id="ig_2", status="failed"),
        i.ImageGenerationCall(id="ig_3", status="completed", result="no base64"),
        i.ImageGenerationCall(id="ig_4", status="completed", result="aGk="),
    ]
    caller = await open_caller(generator, *conversation)
    await call(caller, prompt="A dog.")
    _, end = await call(caller, prompt="Bluer.", action="edit")
    assert end.fields["action"] == "edit"
    first, *others = [image.content for image in generator.asked[1].images]
    assert others == [picture(number) for number in (4, 2, 3, 1)]
    assert in_base64(first) != end.fields["result"]  # it is the image of the call before


async def test_an_edit_gets_no_image_of_its_own_turn(generator: FakeImageGenerator) -> None:
    caller = await open_caller(generator, made(PNG))
    first, second = (d.CallStart(IMAGE_GENERATION, kind=IMAGE_GENERATION) for _ in range(2))
    for start in (first, second):
        caller.open_item(start)
    for start, action in ((first, "generate"), (second, "edit")):
        arguments = json.dumps({"prompt": "A cat.", "action": action})
        assert [batch async for batch in caller.call(start, arguments)]
    assert [image.content for image in generator.asked[1].images] == [PNG]


async def test_an_edit_gets_a_bounded_number_of_images(generator: FakeImageGenerator) -> None:
    caller = await open_caller(generator, shown_by_user(*map(picture, range(40))), action="edit")
    await call(caller, prompt="Merge them.")
    assert len(generator.asked[0].images) == MAX_SOURCE_IMAGES


@pytest.mark.parametrize("mask", [{"image_url": data_url(PNG)}, {"image_url": in_base64(PNG)}])
async def test_a_mask_makes_calls_edits(generator: FakeImageGenerator, mask: Json) -> None:
    caller = await open_caller(generator, made(PNG), input_image_mask=mask, input_fidelity="high")
    await call(caller, prompt="A hat.")
    asked = generator.asked[0]
    assert (asked.action, asked.input_fidelity) == ("edit", "high")
    assert asked.mask is not None
    assert asked.mask.content == PNG


async def test_a_mask_may_be_a_file(generator: FakeImageGenerator, files: MemoryFileStore) -> None:
    mask = {"file_id": "file_mask"}
    caller = await open_caller(generator, made(PNG), files=files, input_image_mask=mask)
    await call(caller, prompt="A hat.")
    assert generator.asked[0].mask is not None
    await call(caller, prompt="A new one.", action="generate")
    assert generator.asked[1].mask is None


async def test_an_image_of_a_lost_server_can_be_edited(generator: FakeImageGenerator) -> None:
    caller = await open_caller(generator)
    start = d.CallStart(IMAGE_GENERATION, kind=IMAGE_GENERATION)
    caller.reopen_item(start, d.ToolStart("image_generation_call", {}))
    caller.restore(start, "{}", [d.ToolEnd("completed", {"result": in_base64(PNG)})])
    await call(caller, prompt="Bluer.", action="edit")
    assert [image.content for image in generator.asked[0].images] == [PNG]


# --- what a generator may do wrong ---


@pytest.mark.parametrize(
    ("makes", "code", "reason"),
    [
        ([], "image_generation_failed", NO_IMAGE),
        ([MadeImage(content=DRAFT, is_partial=True)], "image_generation_failed", NO_IMAGE),
        ([MadeImage(content=b"")], "invalid_image_format", NOT_AN_IMAGE),
        ([MadeImage(content=b"<svg/>")], "invalid_image_format", NOT_AN_IMAGE),
        ([MadeImage(content=PNG.ljust(2001))], "image_too_large", "2000 bytes"),
        (
            [MadeImage(content=PNG[:16] + b"\xff" * 8 + PNG[24:])],
            "image_too_large",
            "10000 pixels",
        ),
        ([ImageError("No.", code="moderation_blocked")], "moderation_blocked", "No."),
        ([ImageError("Gone.", is_unreachable=True)], "unavailable", "Gone."),
        (
            [MadeImage(content=b"x", is_partial=True), MadeImage(content=PNG)],
            "invalid_image_format",
            NOT_AN_IMAGE,
        ),
    ],
)
async def test_a_failure_is_told_to_the_model_with_a_code(
    generator: FakeImageGenerator, makes: list[Any], code: str, reason: str
) -> None:
    generator.makes = makes
    _, end = await call(await open_caller(generator, partial_images=3), prompt="A cat.")
    assert reason in message_of(end)
    assert end.fields["error"]["code"] == code
    assert end.fields["revised_prompt"] == "A cat."
    assert generator.left == 1


@pytest.mark.parametrize("makes", [[None], [MadeImage(content=DRAFT, is_partial=True), None]])
async def test_an_image_that_takes_too_long_is_a_failure(
    generator: FakeImageGenerator, makes: list[Any]
) -> None:
    generator.makes = makes
    caller = await open_caller(generator, limits=IMPATIENT, partial_images=1)
    _, end = await call(caller, prompt="A cat.")
    assert end.fields["error"]["code"] == "timeout"
    assert caller.is_unreachable(end)
    assert generator.left == 1


async def test_only_a_generator_that_is_gone_is_left_alone(generator: FakeImageGenerator) -> None:
    caller = await open_caller(generator)
    for error, is_unreachable in (
        (ImageError("No."), False),
        (ImageError("", is_unreachable=True), True),
    ):
        generator.makes = [error]
        _, end = await call(caller, prompt="A cat.")
        assert caller.is_unreachable(end) is is_unreachable


# --- a whole response ---

TOOL = {"type": "image_generation", "partial_images": 2}
CALL = d.CallStart(IMAGE_GENERATION, kind=IMAGE_GENERATION)
CAT = d.ArgumentsDelta('{"prompt": "A cat."}')


def house_of(
    generator: FakeImageGenerator,
    *,
    calls: int = 1,
    budgets: Budgets = Budgets(),  # noqa: B008
) -> House:
    house = House(
        hosted=[ImageGenerationProvider(generator, MemoryFileStore(), limits=LIMITS)],
        budgets=budgets,
    )
    stop = house.model.played[-1]
    house.model.played = [[CALL, CAT, d.ItemEnd()] * calls, stop]  # type: ignore[list-item]
    house.model.later = [[[d.TextDelta("Here.")], stop]]
    return house


@pytest.mark.parametrize(
    ("raised", "budgets"),
    [
        (ZeroDivisionError(), Budgets()),
        (SystemExit(), Budgets()),
        (None, Budgets(call_s=0.02)),
        (MadeImage(content=PNG), Budgets(call_bytes=100)),
        (MadeImage(content=PNG), Budgets(response_bytes=100)),
    ],
)
async def test_no_generator_ends_a_response(
    generator: FakeImageGenerator, raised: Any, budgets: Budgets
) -> None:
    for drafts in (0, 1):
        generator.makes = [MadeImage(content=DRAFT, is_partial=True)] * drafts + [raised]
        house = house_of(generator, budgets=budgets)
        response = await house.whole(tools=[TOOL])
        image, answer = response.output
        assert isinstance(image, i.ImageGenerationCall)
        assert (image.status, image.result) == ("failed", None)
        assert image.error["message"]
        assert isinstance(answer, i.Message)
        assert response.status == "completed"
        shown = house.model.turns[-1].items[-1]
        assert isinstance(shown, i.ImageGenerationCall)


async def test_a_generator_that_is_gone_is_not_asked_for_every_call(
    generator: FakeImageGenerator,
) -> None:
    generator.makes = [ImageError("Gone.", is_unreachable=True)]
    house = house_of(generator, calls=6)
    response = await house.whole(tools=[TOOL], parallel_tool_calls=False)
    assert [item.status for item in response.output[:-1]] == ["failed"] * 6  # type: ignore[union-attr]
    assert len(generator.asked) == 3


async def test_calls_beyond_the_limit_are_not_run(generator: FakeImageGenerator) -> None:
    response = await house_of(generator, calls=3).whole(tools=[TOOL], max_tool_calls=1)
    statuses = [item.status for item in response.output[:-1]]  # type: ignore[union-attr]
    assert statuses == ["completed", "failed", "failed"]
    assert len(generator.asked) == 1
    refused: Any = response.output[1]
    assert (refused.revised_prompt, "max_tool_calls" in refused.error["message"]) == (
        "A cat.",
        True,
    )


async def test_a_model_that_reads_no_images_is_told_of_them(generator: FakeImageGenerator) -> None:
    house = house_of(generator)
    response = await house.whole(tools=[TOOL])
    [image, _] = response.output
    assert isinstance(image, i.ImageGenerationCall)
    assert image.result
    shown = house.model.turns[-1].items[-1]
    assert isinstance(shown, i.ImageGenerationCall)
    assert (shown.revised_prompt, shown.result) == ("A cat.", None)
