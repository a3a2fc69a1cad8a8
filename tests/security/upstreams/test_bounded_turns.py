"""A turn ends at its bound, whatever its engine, its model or its server writes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace
from tests.http.conftest import script
from tests.security.support.hostile_upstream import MODEL, HostileUpstream, hostile_upstream

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
from antiphon.adapters.models.chat_completions import ChatCompletionsModel, ChatOptions
from antiphon.adapters.models.chat_completions.reader import MAX_CHUNK_LOGPROBS, ChunkReader
from antiphon.application.model.output_bounds import (
    MAX_COUNTED_CONTEXTS,
    MAX_TOKEN_CHARS,
    SPARE_CHARS,
    SPARE_PIECES,
    OutputRoom,
)
from antiphon.application.model.supervision import SupervisedModel
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import (
    AdmitPrompt,
    EngineRequest,
    Model,
    ModelTurn,
    Sampling,
    Step,
    Steps,
    Turn,
)
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import EngineError, RequestError
from antiphon.domain.responses.usage import TurnUsage

CONTEXT = 1000


def turn_of(text: str = "Hi", **sampling: Any) -> Turn:
    items = [i.Message(role="user", content=text)]
    return Turn(model="m", items=items, tenant="t", sampling=Sampling(**sampling))


async def read(model: Model, turn: Turn) -> list[d.Delta]:
    started = await model.start_turn(turn, request_id="r")
    async with aclosing(aiter(started)) as batches:
        return [delta async for deltas in batches for delta in deltas]


def text_of(deltas: Sequence[d.Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, d.TextDelta))


# --- a model of one's own -------------------------------------------------------------------------


class EndlessTurn(ModelTurn):
    """Writes `piece` for ever, without ever waiting for anything."""

    def __init__(self, piece: str, usage: TurnUsage) -> None:
        self._piece = piece
        self._usage = usage

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        while True:
            yield [d.TextDelta(self._piece)] if self._piece else []

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [self._usage]


class EndlessModel(Model):
    names = ("m",)
    format_name = "endless"
    reads_images = False
    efforts = ()
    context_length = CONTEXT
    sampling_defaults: Mapping[str, Any] = {}

    def __init__(self, piece: str, usage: TurnUsage = TurnUsage()) -> None:  # noqa: B008 - frozen
        self._turn = EndlessTurn(piece, usage)

    async def count(self, turn: Turn) -> int:
        return 1

    async def start_turn(
        self,
        turn: Turn,
        *,
        request_id: str,
        admit: AdmitPrompt | None = None,
    ) -> ModelTurn:
        return self._turn


async def supervised(model: Model) -> SupervisedModel:
    supervised = SupervisedModel(model)
    await supervised.start()
    return supervised


@pytest.mark.parametrize("max_tokens", [16, None])
@pytest.mark.parametrize("piece", ["", "x", "word ", "x" * 1000, "x" * 1_000_000])
async def test_a_model_that_never_ends_is_cut(piece: str, max_tokens: int | None) -> None:
    model = await supervised(EndlessModel(piece))
    deltas = await read(model, turn_of(max_tokens=max_tokens))
    limit = max_tokens or CONTEXT
    assert isinstance(deltas[-1], d.TurnEnd)
    assert deltas[-1].reason == "length"
    assert len(text_of(deltas)) <= limit * MAX_TOKEN_CHARS + SPARE_CHARS
    assert len(deltas) <= limit + SPARE_PIECES + 2


async def test_a_model_that_never_waits_lets_others_take_their_turn() -> None:
    model = await supervised(EndlessModel("x"))
    reading = asyncio.create_task(read(model, turn_of()))
    rounds = 0
    while not reading.done():
        rounds += 1
        await asyncio.sleep(0)
    assert rounds > 1


async def test_no_models_usage_is_more_than_its_context_can_have() -> None:
    model = await supervised(EndlessModel("x", TurnUsage(input=10**9, output=10**9)))
    *_, end = await read(model, turn_of(max_tokens=16))
    assert isinstance(end, d.TurnEnd)
    assert end.usage.input == MAX_COUNTED_CONTEXTS * CONTEXT
    assert end.usage.output == 16


async def test_a_long_text_counts_among_the_bytes_in_work_and_is_given_back() -> None:
    model = await supervised(EndlessModel("x" * 10_000))
    bytes_in_work = BytesInWork()
    model.room = OutputRoom(bytes_in_work)
    started = await model.start_turn(turn_of(), request_id="r")
    most = 0
    async with aclosing(aiter(started)) as batches:
        async for _ in batches:
            most = max(most, bytes_in_work.by_subject["model_output"])
    assert most > CONTEXT * MAX_TOKEN_CHARS
    assert bytes_in_work.total == 0


async def test_a_turn_without_room_for_its_text_ends() -> None:
    model = await supervised(EndlessModel("x" * 10_000))
    model.room = OutputRoom(BytesInWork(max_bytes=400_000))
    with pytest.raises(RequestError, match="bytes"):
        await read(model, turn_of())
    assert model.room.bytes_in_work.total == 0


# --- an engine of one's own -----------------------------------------------------------------------


class Unlimited(ScriptedEngine):
    """Writes whatever its script says, beyond the limit of tokens."""

    async def generate(self, request: EngineRequest) -> Steps:
        sampling = replace(request.sampling, max_tokens=100_000)
        return await super().generate(replace(request, sampling=sampling))


class LongTexts(ScriptedEngine):
    """Sends a million characters for each token."""

    async def generate(self, request: EngineRequest) -> Steps:
        return _LongSteps(await super().generate(request))


class _LongSteps(Steps):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def __aiter__(self) -> AsyncIterator[Step]:
        async for step in self._steps:
            yield replace(step, text="x" * 1_000_000)

    async def aclose(self) -> None:
        await self._steps.aclose()


@pytest.mark.parametrize("step_tokens", [1, 3])
async def test_an_engine_writes_exactly_its_limit_of_tokens(step_tokens: int) -> None:
    engine = Unlimited(ScriptedMarkup(), ["m"], step_tokens=step_tokens)
    model = await supervised(TokenModel(scripted_chat, engine))
    deltas = await read(model, turn_of(script({"say": "word " * 300}), max_tokens=20))
    assert isinstance(deltas[-1], d.TurnEnd)
    assert deltas[-1].reason == "length"
    assert deltas[-1].usage.output == 20
    assert len(text_of(deltas)) <= 25 * len("word ")


async def test_an_engine_writes_no_more_text_than_its_tokens_can_have() -> None:
    model = await supervised(TokenModel(scripted_chat, LongTexts(ScriptedMarkup(), ["m"])))
    deltas = await read(model, turn_of(script({"say": "word " * 300}), max_tokens=20))
    assert isinstance(deltas[-1], d.TurnEnd)
    assert deltas[-1].reason == "length"
    assert len(text_of(deltas)) <= 20 * MAX_TOKEN_CHARS + SPARE_CHARS


# --- a server of others ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def upstream() -> Iterator[HostileUpstream]:
    with hostile_upstream() as server:
        yield server


async def read_attack(upstream: HostileUpstream, attack: str, **sampling: Any) -> list[d.Delta]:
    options = ChatOptions(url=f"{upstream.origin}/{attack}/v1", model=MODEL)
    model = await supervised(ChatCompletionsModel(["m"], options))
    try:
        return await read(model, turn_of(**sampling))
    finally:
        await model.aclose()


@pytest.mark.parametrize(
    "attack",
    ["text", "letters", "long-text", "reasoning", "refusal", "arguments", "blanks", "text-in-call"],
)
async def test_an_answer_without_an_end_is_cut(upstream: HostileUpstream, attack: str) -> None:
    deltas = await read_attack(upstream, attack, max_tokens=100)
    assert isinstance(deltas[-1], d.TurnEnd)
    assert deltas[-1].reason == "length"
    assert len(text_of(deltas)) <= 100 * MAX_TOKEN_CHARS + SPARE_CHARS
    assert deltas[-1].usage.output <= 100


@pytest.mark.parametrize("attack", ["gzip", "interim", "headers"])
async def test_an_answer_that_is_no_answer_fails(upstream: HostileUpstream, attack: str) -> None:
    with pytest.raises(EngineError):
        await read_attack(upstream, attack)


async def test_interim_answers_before_the_answer_are_read_over(upstream: HostileUpstream) -> None:
    assert text_of(await read_attack(upstream, "hello-after-interim")) == "Hello."


@pytest.mark.parametrize("attack", ["logprobs", "logprobs-of-many-tokens"])
async def test_no_more_log_probabilities_are_read_than_were_asked_for(
    upstream: HostileUpstream, attack: str
) -> None:
    options = ChatOptions(url=f"{upstream.origin}/{attack}/v1", model=MODEL)
    model = await supervised(ChatCompletionsModel(["m"], options))
    started = await model.start_turn(turn_of(logprobs=2), request_id="r")
    async with aclosing(aiter(started)) as batches:
        while not (deltas := await anext(batches)):
            pass
    await model.aclose()
    [text] = deltas
    assert isinstance(text, d.TextDelta)
    assert 1 <= len(text.logprobs) <= MAX_CHUNK_LOGPROBS / 3
    assert all(len(each.top_logprobs) <= 2 for each in text.logprobs)


async def test_the_text_of_a_turn_is_freed_at_its_end(upstream: HostileUpstream) -> None:
    def readers() -> int:
        return sum(isinstance(each, ChunkReader) for each in gc.get_objects())

    gc.collect()
    before = readers()
    gc.disable()
    try:
        await read_attack(upstream, "hello")
        assert readers() == before
    finally:
        gc.enable()
