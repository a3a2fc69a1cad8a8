"""Images with the real vLLM: exact counts, order, caching, and errors that leave it alive."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from antiphon.adapters.engines.vllm_engine import VllmEngine
from antiphon.adapters.formats.chat_template import from_hf_tokenizer
from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.url_policy import NoFetcher
from antiphon.application.input.media import LoadMedia
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Constraint, Prompt, Sampling, StoredFile, Turn
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.access.limits import FULL_ACCESS
from antiphon.domain.deltas import TurnEnd
from antiphon.domain.errors import RequestError
from antiphon.domain.responses.usage import TurnUsage

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]

OPTIONS = ("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager")
GREEDY = Sampling(temperature=0.0, max_tokens=4, ignore_eos=True)
LONG_TEXT = "What do you see in this picture of mine? " * 3

_numbers = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(models_folder: Path) -> AsyncIterator[TokenModel]:
    engine = VllmEngine(
        str(models_folder / "sees"),
        served_names=["sees"],
        engine_args=[*OPTIONS, "--limit-mm-per-prompt", '{"image": 3}'],
    )
    model = TokenModel(lambda: from_hf_tokenizer(engine.tokenizer), engine)
    await model.start()
    yield model
    await model.aclose()


def png(color: Any, size: tuple[int, int] = (40, 30)) -> bytes:
    from PIL import Image

    written = BytesIO()
    Image.new("RGB", size, color).save(written, "PNG")
    return written.getvalue()


def url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def picture(color: Any, size: tuple[int, int] = (40, 30)) -> c.InputImage:
    return c.InputImage(image_url=url(png(color, size)))


def user_message(*parts: c.MessagePart | str) -> i.Message:
    content = tuple(c.InputText(text=p) if isinstance(p, str) else p for p in parts)
    return i.Message(role="user", content=content)


def turn(*items: i.AnyItem, sampling: Sampling = GREEDY, **fields: Any) -> Turn:
    return Turn(model="sees", items=items, sampling=sampling, **fields)


async def run(model: TokenModel, turn: Turn) -> tuple[str, TurnUsage]:
    """Return what the model wrote, and the usage."""
    model_turn = await model.start_turn(turn, request_id=f"run_{next(_numbers)}")
    deltas = [delta async for batch in model_turn for delta in batch]
    assert isinstance(deltas[-1], TurnEnd)
    return "".join(getattr(delta, "text", "") for delta in deltas), deltas[-1].usage


async def prompt(model: TokenModel, *items: i.AnyItem) -> list[int]:
    return list((await model._render(turn(*items))).token_ids)


async def test_a_vision_model_says_that_it_reads_images(model: TokenModel) -> None:
    assert model.reads_images


async def test_the_counted_tokens_are_those_that_the_engine_runs(model: TokenModel) -> None:
    asking = turn(user_message("Look: ", picture("red"), " and ", picture("blue", (120, 90))))
    text_alone = await model.count(turn(user_message("Look: ", " and ")))
    count = await model.count(asking)
    model_turn = await model.start_turn(asking, request_id=f"run_{next(_numbers)}")
    outputs = [delta async for batch in model_turn for delta in batch]
    assert outputs[-1].usage.input == count > text_alone + 8  # type: ignore[union-attr]
    # According to vLLM itself.
    seen = await vllm_prompt_tokens(model, asking)
    assert seen == await prompt(model, *asking.items)


async def vllm_prompt_tokens(model: TokenModel, asking: Turn) -> list[int]:
    from vllm.sampling_params import SamplingParams

    llm: Any = model._engine._runs._llm  # type: ignore[attr-defined]
    prepared = (await model._render(asking)).prepared
    parameters = SamplingParams(max_tokens=1)
    async for output in llm.generate(prepared, parameters, f"run_{next(_numbers)}"):
        tokens = output.prompt_token_ids
    return list(tokens)


async def test_the_tokens_of_an_image_depend_on_its_shape(model: TokenModel) -> None:
    wide = await model.count(turn(user_message(picture("red", (400, 40)))))
    square = await model.count(turn(user_message(picture("red", (400, 400)))))
    assert square > wide


async def test_the_same_image_is_cached_and_another_is_not(model: TokenModel) -> None:
    first = turn(user_message(picture((1, 2, 3)), LONG_TEXT))
    other = turn(user_message(picture((3, 2, 1)), LONG_TEXT))
    _, cold = await run(model, first)
    _, warm = await run(model, first)
    _, changed = await run(model, other)
    assert cold.cached == 0
    assert warm.cached > 32
    assert changed.cached == 0


async def test_tenants_do_not_share_cached_images(model: TokenModel) -> None:
    items = (user_message(picture((9, 9, 9)), LONG_TEXT),)
    await run(model, turn(*items, cache_salt="one"))
    _, theirs = await run(model, turn(*items, cache_salt="two"))
    _, ours = await run(model, turn(*items, cache_salt="one"))
    assert theirs.cached == 0
    assert ours.cached > 32


async def test_images_have_the_order_of_the_conversation(model: TokenModel) -> None:
    red, blue = picture("red"), picture("blue")
    await run(model, turn(user_message(red, LONG_TEXT, blue, LONG_TEXT)))
    _, same = await run(model, turn(user_message(red, LONG_TEXT, blue, LONG_TEXT)))
    _, second_changed = await run(model, turn(user_message(red, LONG_TEXT, red, LONG_TEXT)))
    _, swapped = await run(model, turn(user_message(blue, LONG_TEXT, red, LONG_TEXT)))
    assert same.cached > second_changed.cached > swapped.cached == 0


async def test_a_data_url_and_an_uploaded_file_are_the_same_prompt(model: TokenModel) -> None:
    files, content = MemoryFileStore(), png("green")
    file = StoredFile(
        id="file-1", filename="g.png", purpose="vision", bytes=len(content), created_at=1
    )
    await files.create_file("t", file, content)
    show = LoadMedia(files, NoFetcher(), PdfReader())
    prompts = [
        await prompt(
            model,
            *await show(
                [user_message("See", part)],
                tenant="t",
                policy=FULL_ACCESS,
                reads_images=True,
                path_of=lambda _: "input[0]",
            ),
        )
        for part in (c.InputImage(image_url=url(content)), c.InputImage(file_id="file-1"))
    ]
    assert prompts[0] == prompts[1]


async def test_a_tool_may_return_an_image(model: TokenModel) -> None:
    call = i.FunctionCall(call_id="call_1", name="look", arguments="{}")
    with_image = i.FunctionCallOutput(
        call_id="call_1", output=(c.InputText(text="Here"), picture("red"))
    )
    without = i.FunctionCallOutput(call_id="call_1", output="Here")
    shown = turn(user_message("Look"), call, with_image)
    assert (
        await model.count(shown) > await model.count(turn(user_message("Look"), call, without)) + 4
    )
    _, usage = await run(model, shown)
    assert usage.input == await model.count(shown)


async def test_a_constraint_binds_an_answer_to_an_image(model: TokenModel) -> None:
    chosen = Sampling(temperature=0.0, constraint=Constraint(kind="choice", value=["yes", "no"]))
    text, _ = await run(model, turn(user_message(picture("red"), "?"), sampling=chosen))
    assert text in ("yes", "no")


async def test_images_that_do_not_fit_the_context_are_refused(model: TokenModel) -> None:
    large = [picture((n, 0, 0), (800, 800)) for n in range(3)]
    asking = turn(user_message(*large, "word " * 900))
    assert await model.count(asking) > 2048
    with pytest.raises(RequestError) as raised:
        await model.start_turn(asking, request_id="run_long")
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (3, 1), (1, 3000), (3000, 1)])
async def test_images_of_odd_shapes_run_or_are_refused(
    model: TokenModel, size: tuple[int, int]
) -> None:
    asking = turn(user_message(picture("red", size), "?"))
    try:
        _, usage = await run(model, asking)
    except RequestError as error:
        assert error.param == "input"
    else:
        assert usage.input == await model.count(asking)
    await model.check()
    assert (await run(model, turn(user_message("Still there?"))))[1].output == 4


async def test_an_image_that_cannot_be_decoded_is_refused(model: TokenModel) -> None:
    rubbish = user_message(c.InputImage(image_url=url(b"\x89PNG\r\n\x1a\nrubbish")))
    with pytest.raises(RequestError) as raised:
        await model.start_turn(turn(rubbish), request_id="run_bad")
    assert raised.value.code == "image_parse_error"
    assert "object at 0x" not in raised.value.message


async def test_a_text_that_spells_the_image_token_is_a_text(model: TokenModel) -> None:
    spelled = turn(user_message("I spell <image> myself.", picture("red"), "And <image> again."))
    _, usage = await run(model, spelled)
    assert (usage.input, usage.output) == (await model.count(spelled), 4)


async def test_more_images_than_the_engine_takes_are_refused(model: TokenModel) -> None:
    with pytest.raises(RequestError, match="At most 3") as raised:
        await model.count(turn(user_message(*[picture((n, n, n)) for n in range(4)])))
    assert raised.value.param == "input"


async def test_a_prompt_without_images_is_not_changed(model: TokenModel) -> None:
    plain = Prompt(token_ids=(5, 6, 7))
    assert await model._engine.prepare(plain) is plain


async def test_counting_repeatedly_does_not_disturb_runs(model: TokenModel) -> None:
    asking = turn(user_message(picture((7, 7, 7), (100, 100)), LONG_TEXT))
    for _ in range(3):
        await model.count(asking)
    _, usage = await run(model, asking)
    assert usage.input == await model.count(asking)
