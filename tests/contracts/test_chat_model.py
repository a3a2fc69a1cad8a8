"""A model on a Chat Completions server keeps the promises of a model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.upstreams.chat_server import MODEL, ScriptedChatServer, scripted_chat_server

from antiphon.adapters.models.chat_completions import ChatCompletionsModel, ChatOptions
from antiphon.application.ports import Model, Turn
from antiphon.domain.items import Message
from antiphon.testing.model import ModelContract, TurnFactory

WORDS = " ".join(f"word{n}" for n in range(40))


class TestChatModel(ModelContract):
    """On the styles of the servers that count tokens: the contract wants exact numbers."""

    @pytest.fixture
    def upstream(self) -> Iterator[ScriptedChatServer]:
        with scripted_chat_server(context_length=4000) as server:
            yield server

    @pytest.fixture(params=["vllm", "llama_cpp"])
    async def model(
        self, request: pytest.FixtureRequest, upstream: ScriptedChatServer
    ) -> AsyncIterator[Model]:
        options = ChatOptions(url=upstream.url(request.param), model=MODEL)
        model = ChatCompletionsModel(["mine"], options)
        await model.start()
        yield model
        await model.aclose()

    @pytest.fixture
    def ask(self, model: Model) -> TurnFactory:
        items = [Message(role="user", content=f"@@script {json.dumps([{'say': WORDS}])}")]
        return lambda **fields: Turn(model=model.names[0], items=items, **fields)
