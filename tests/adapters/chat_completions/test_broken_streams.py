"""Whatever a server does to a stream, the turn has a defined end."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
from tests.adapters.chat_completions.turns import join, read, turn_of
from tests.http.conftest import wait_until
from tests.upstreams.chat_faults import STREAMS
from tests.upstreams.chat_server import MODEL, ScriptedChatServer, scripted_chat_server

from antiphon.adapters.models.chat_completions import ChatCompletionsModel, ChatOptions
from antiphon.application.model.stalls import TokenDeadlines
from antiphon.application.ports import ModelTurn
from antiphon.domain import deltas as d
from antiphon.domain.errors import EngineDead, EngineError

DEADLINES = TokenDeadlines(first_token_s=1, between_tokens_s=0.5)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as server:
        yield server


@pytest.fixture
async def model(upstream: ScriptedChatServer) -> AsyncIterator[ChatCompletionsModel]:
    options = ChatOptions(url=upstream.url("deepseek"), model=MODEL)
    model = ChatCompletionsModel(["mine"], options, deadlines=DEADLINES)
    await model.start()
    yield model
    await model.aclose()


async def read_until_it_fails(turn: ModelTurn) -> list[d.Delta]:
    read: list[d.Delta] = []
    with pytest.raises(EngineError):
        async with aclosing(aiter(turn)) as batches:
            async for deltas in batches:
                read += deltas
    assert not any(isinstance(delta, d.TurnEnd) for delta in read)
    return read


BROKEN = sorted(set(STREAMS) - {"content filter", "drips", "hangs"})
SILENT = ("drips", "hangs", "hangs before headers")


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_stream_fails_with_what_there_was(
    model: ChatCompletionsModel, upstream: ScriptedChatServer, fault: str
) -> None:
    upstream.faults.append(fault)
    started = await model.start_turn(turn_of({"say": "word " * 60}), request_id="r")
    await read_until_it_fails(started)
    assert started.tokens_used()[0].output < 30
    await asyncio.to_thread(wait_until, lambda: upstream.open_answers == 0)


async def test_an_answer_that_is_filtered_ends_by_the_filter(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    upstream.faults.append("content filter")
    [text, reason] = join(await read(model, turn_of({"say": "word " * 60})))
    assert text[1].startswith("word")
    assert reason == "content_filter"


@pytest.mark.faults
@pytest.mark.parametrize("fault", SILENT)
async def test_a_silent_server_ends_the_turn_after_the_deadline(
    model: ChatCompletionsModel, upstream: ScriptedChatServer, fault: str
) -> None:
    upstream.faults.append(fault)
    started = await model.start_turn(turn_of({"say": "Hello."}), request_id="r")
    assert await read_until_it_fails(started) == []
    await asyncio.to_thread(wait_until, lambda: upstream.open_answers == 0)


async def test_a_connection_that_closes_before_the_answer_is_an_error_of_the_start(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    upstream.faults += ["closes before headers"] * 3
    with pytest.raises(EngineError):
        await model.start_turn(turn_of({"say": "Hello."}), request_id="r")
    upstream.faults.clear()


async def test_a_long_line_takes_no_memory(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    upstream.faults.append("a long line")
    started = await model.start_turn(turn_of({"say": "word " * 60}), request_id="r")
    tracemalloc.start()
    try:
        await read_until_it_fails(started)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 1024 * 1024


async def test_leaving_a_turn_closes_its_connection(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    upstream.faults += ["hangs later", "hangs later"]
    started = await model.start_turn(turn_of({"say": "word " * 60}), request_id="r")
    async with aclosing(aiter(started)) as batches:
        await anext(batches)
        assert upstream.open_answers == 1
    unread = await model.start_turn(turn_of({"say": "word " * 60}), request_id="r")
    await unread.aclose()
    await asyncio.to_thread(wait_until, lambda: upstream.open_answers == 0)


async def test_a_stream_that_was_read_leaves_its_connection_to_the_next(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    await read(model, turn_of({"say": "Hello."}))
    count = upstream.connections
    for _ in range(5):
        await read(model, turn_of({"say": "Hello."}))
    assert upstream.connections == count


async def test_a_server_that_is_gone_is_dead_until_it_is_back(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    await model.check()
    options = ChatOptions(url="http://127.0.0.1:1/v1", model=MODEL)
    gone = ChatCompletionsModel(["gone"], options)
    with pytest.raises(EngineDead):
        await gone.start()
