"""What servers stream against the API becomes the same turn, over a connection, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from tests.adapters.chat_completions.test_reader import ADD, BOTH_CALLS, NOW, chunk_of
from tests.adapters.chat_completions.turns import join, read, turn_of
from tests.upstreams.chat_server import MODEL, ScriptedChatServer, scripted_chat_server

from antiphon.adapters.models.chat_completions import ChatCompletionsModel, ChatOptions
from antiphon.domain import deltas as d
from antiphon.domain.errors import EngineError

Json = dict[str, Any]
END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 9}}


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as server:
        yield server


@pytest.fixture
async def model(upstream: ScriptedChatServer) -> AsyncIterator[ChatCompletionsModel]:
    model = ChatCompletionsModel(["mine"], ChatOptions(url=upstream.url("vllm"), model=MODEL))
    await model.start()
    yield model
    await model.aclose()


@pytest.mark.parametrize("ends", [[END], []], ids=["with a finish reason", "without"])
@pytest.mark.parametrize("form", BOTH_CALLS)
async def test_two_calls_are_read_in_every_form(
    model: ChatCompletionsModel, upstream: ScriptedChatServer, form: str, ends: Sequence[Json]
) -> None:
    upstream.streams.append([*map(chunk_of, BOTH_CALLS[form]), *ends])
    assert join(await read(model, turn_of())) == [ADD, NOW, "stop"]


async def test_reasoning_and_text_in_one_chunk_and_usage_before_the_end(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    both = chunk_of({"reasoning_content": "Hm.", "content": "Hi."})
    upstream.streams.append([both, USAGE, END])
    *deltas, end = await read(model, turn_of())
    assert join(deltas) == [("ReasoningDelta", "Hm."), ("TextDelta", "Hi.")]
    assert isinstance(end, d.TurnEnd)
    assert (end.usage.input, end.usage.output) == (50, 9)


async def test_an_error_in_the_middle_fails_the_turn_with_its_message_and_what_there_was(
    model: ChatCompletionsModel, upstream: ScriptedChatServer
) -> None:
    upstream.streams.append(
        [chunk_of({"content": "Hi"}), {"error": {"message": "out of blocks"}}, END]
    )
    started = await model.start_turn(turn_of(), request_id="r")
    deltas: list[d.Delta] = []
    with pytest.raises(EngineError, match="out of blocks"):
        async with aclosing(aiter(started)) as batches:
            async for batch in batches:
                deltas += batch
    assert join(deltas) == [("TextDelta", "Hi")]
