"""Images on a pool of real vLLM servers: counted before the run, as the server runs them."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from openai import AsyncOpenAI
from tests.conftest import running, settings_for
from tests.vllm.test_images import LONG_TEXT, OPTIONS, picture, turn, url, user_message
from tests.vllm.vllm_servers import vllm_servers

from antiphon.adapters.engines.vllm_http import VllmHttpEngine, VllmHttpOptions
from antiphon.adapters.formats.chat_template import from_hf_tokenizer
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Constraint, EngineRequest, Prompt, Sampling, Turn
from antiphon.domain import content as c
from antiphon.domain.deltas import TurnEnd
from antiphon.domain.errors import RequestError
from antiphon.domain.responses.usage import TurnUsage
from antiphon.testing.engine import steps_of, text_of

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]

PAIR = {
    name: [*OPTIONS, "--enable-scale-out", "--limit-mm-per-prompt", '{"image": 3}']
    for name in ("first", "second")
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def pair(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The URLs of two servers."""
    named = tmp_path_factory.mktemp("named")
    with vllm_servers(models_folder / "sees", named, PAIR) as servers:
        yield [server.url for server in servers.values()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(pair: list[str], models_folder: Path) -> AsyncIterator[TokenModel]:
    from transformers import AutoTokenizer  # only where vLLM is installed

    engine = VllmHttpEngine(["sees"], VllmHttpOptions(url=pair[0]))
    tokenizer = AutoTokenizer.from_pretrained(str(models_folder / "sees"))
    model = TokenModel(lambda: from_hf_tokenizer(tokenizer), engine)
    await model.start()
    yield model
    await model.aclose()


async def run(model: TokenModel, asking: Turn) -> tuple[str, TurnUsage]:
    """Return what the model wrote, and the usage."""
    model_turn = await model.start_turn(asking, request_id=f"run_{next(_numbers)}")
    deltas = [delta async for batch in model_turn for delta in batch]
    assert isinstance(deltas[-1], TurnEnd)
    return "".join(getattr(delta, "text", "") for delta in deltas), deltas[-1].usage


@pytest.fixture
def miscounts(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Warnings that the server ran another number of tokens."""
    return caplog.records


async def test_a_pool_of_a_vision_model_reads_images(model: TokenModel) -> None:
    assert model.reads_images


@pytest.mark.parametrize(
    "sizes", [[(40, 30)], [(40, 30), (120, 90)], [(400, 40), (9, 400), (56, 56)]]
)
async def test_the_server_runs_as_many_tokens_as_were_counted(
    model: TokenModel, sizes: list[tuple[int, int]], miscounts: list[logging.LogRecord]
) -> None:
    parts = [part for size in sizes for part in ("\n\nLook: ", picture("red", size))]
    asking = turn(user_message(*parts, "\nWhat is it?"))
    count = await model.count(asking)
    _, usage = await run(model, asking)
    assert usage.input == count > 20 * len(sizes)
    assert not miscounts


async def test_another_server_runs_a_prompt_that_the_first_prepared(
    model: TokenModel, pair: list[str], miscounts: list[logging.LogRecord]
) -> None:
    asking = turn(user_message(picture("red"), "What is it?"))
    prompt = await model._render(asking)
    other = VllmHttpEngine(["sees"], VllmHttpOptions(url=pair[1]))
    await other.start()
    try:
        answers = [
            text_of(await steps_of(engine, request_of(asking, prompt)))
            for engine in (model._engine, other)
        ]
    finally:
        await other.aclose()
    assert answers[0] == answers[1]
    assert not miscounts


def request_of(asking: Turn, prompt: Prompt) -> EngineRequest:
    return EngineRequest(
        request_id=f"run_{next(_numbers)}",
        model="sees",
        prompt=prompt,
        sampling=asking.sampling,
        turn=asking,
    )


async def test_the_same_image_is_cached_and_another_is_not(model: TokenModel) -> None:
    first = turn(user_message(picture((1, 2, 3)), LONG_TEXT))
    other = turn(user_message(picture((3, 2, 1)), LONG_TEXT))
    _, cold = await run(model, first)
    _, warm = await run(model, first)
    _, changed = await run(model, other)
    assert cold.cached == 0
    assert warm.cached > 32
    assert changed.cached == 0


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
    model: TokenModel, size: tuple[int, int], miscounts: list[logging.LogRecord]
) -> None:
    asking = turn(user_message(picture("red", size), "?"))
    try:
        _, usage = await run(model, asking)
    except RequestError as error:
        assert error.param == "input"
    else:
        assert usage.input == await model.count(asking)
    assert (await run(model, turn(user_message("Still there?"))))[1].output == 4
    assert not miscounts


async def test_an_image_that_cannot_be_decoded_is_refused(model: TokenModel) -> None:
    rubbish = user_message(c.InputImage(image_url=url(b"\x89PNG\r\n\x1a\nrubbish")))
    with pytest.raises(RequestError) as raised:
        await model.start_turn(turn(rubbish), request_id="run_bad")
    assert raised.value.param == "input"
    assert "object at 0x" not in raised.value.message


async def test_more_images_than_the_servers_take_are_refused(model: TokenModel) -> None:
    with pytest.raises(RequestError, match="At most 3") as raised:
        await model.count(turn(user_message(*[picture((n, n, n)) for n in range(4)])))
    assert raised.value.param == "input"


async def test_a_text_that_spells_the_image_token_is_a_text(
    model: TokenModel, miscounts: list[logging.LogRecord]
) -> None:
    spelled = turn(user_message("I spell <image> myself.", picture("red"), "And <image> again."))
    _, usage = await run(model, spelled)
    assert (usage.input, usage.output) == (await model.count(spelled), 4)
    assert not miscounts


async def test_a_prompt_with_too_many_placeholders_is_refused(model: TokenModel) -> None:
    prompt = await model._render(turn(user_message(picture("red"))))
    doubled = replace(
        prompt, token_ids=[*prompt.prepared.token_ids, *prompt.prepared.token_ids], prepared=None
    )
    with pytest.raises(RequestError, match="spells"):
        await model._engine.prepare(doubled)


async def test_a_prompt_without_images_is_not_changed(model: TokenModel) -> None:
    plain = Prompt(token_ids=(5, 6, 7))
    assert await model._engine.prepare(plain) is plain


async def test_an_image_of_a_refused_run_is_read_in_the_next(model: TokenModel) -> None:
    content = user_message(picture((4, 5, 6)), "What is it?")
    invalid = Sampling(temperature=0.0, constraint=Constraint(kind="regex", value="(["))
    with pytest.raises(RequestError):
        await run(model, turn(content, sampling=invalid))
    for _ in range(2):
        _, usage = await run(model, turn(content))
        assert usage.output == 4
    assert usage.cached > 32


async def test_a_text_with_the_image_token_alone_is_refused(model: TokenModel) -> None:
    prompt = await model._render(turn(user_message(picture("red"))))
    alone = Prompt(token_ids=prompt.prepared.token_ids)
    with pytest.raises(RequestError, match="spells"):
        await model._engine.prepare(alone)


async def test_a_client_sees_the_counted_tokens_and_asks_on(
    pair: list[str], tmp_path: Path
) -> None:
    config = tmp_path / "antiphon.toml"
    config.write_text(
        f'[[models]]\nname = "sees"\nengine = "vllm_http"\nurls = {json.dumps(pair)}\n'
    )
    image = {"type": "input_image", "image_url": picture((7, 8, 9), (90, 60)).image_url}
    text = {"type": "input_text", "text": LONG_TEXT}
    asking: Any = [{"role": "user", "content": [text, image]}]
    with running(settings_for(tmp_path, config=config)) as server:
        async with AsyncOpenAI(base_url=server.api, api_key="none") as client:
            counted = await client.responses.input_tokens.count(model="sees", input=asking)
            first = await client.responses.create(model="sees", input=asking, max_output_tokens=16)
            second = await client.responses.create(
                model="sees", input="And?", previous_response_id=first.id, max_output_tokens=16
            )
    assert first.usage is not None
    assert first.usage.input_tokens == counted.input_tokens > 100
    # The second prompt begins with the first, so it went to the same server.
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= counted.input_tokens // 32 * 32
