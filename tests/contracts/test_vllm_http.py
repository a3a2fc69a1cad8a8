"""A pool of vLLM servers keeps the promises of an engine, and a model on it those of a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.adapters.engines.pool_fixtures import TALE, TestPool, pool
from tests.upstreams.token_server import WIRES, TellingEngine, TokenServer, TurnRegistry, listening
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.engines.scripted.logprobs import _OTHERS
from antiphon.adapters.engines.vllm_http import VllmHttpOptions
from antiphon.adapters.formats.chat_template import ChatTemplateFormat
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.renderer import TemplateRenderer
from antiphon.adapters.formats.chat_template.scripted import FamilyMarkup
from antiphon.adapters.formats.chat_template.scripted.family_markup import tokenizer_of
from antiphon.adapters.formats.chat_template.scripted.family_template import (
    FamilyTemplate,
    end_marker,
)
from antiphon.adapters.formats.chat_template.scripted.family_turns import FamilyTurns
from antiphon.adapters.formats.chat_template.tokenizer import FolderTokenizer
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Engine, Model, Turn
from antiphon.domain.items import Message
from antiphon.testing.engine import (
    EngineContract,
    IsIdle,
    Kill,
    RequestFactory,
)
from antiphon.testing.model import ModelContract, TurnFactory
from antiphon.testing.scripts import script


class TestVllmHttpEngine(EngineContract):
    # The servers are scripted: tests/vllm has the contract with vLLM itself, which lacks none.
    lacks = frozenset({"constraints", "stop_token_ids"})

    @pytest.fixture(params=WIRES)
    async def running(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[TestPool]:
        async with pool(wires=[request.param], folder=tmp_path) as running:
            yield running

    @pytest.fixture
    def engine(self, running: TestPool) -> Engine:
        return running.engine

    @pytest.fixture
    def ask(self, running: TestPool) -> RequestFactory:
        return lambda **sampling: running.request(temperature=0, **sampling)

    @pytest.fixture
    def kill(self, running: TestPool) -> Kill:
        return running.servers[0].kill

    @pytest.fixture
    def is_idle(self, running: TestPool) -> IsIdle:
        async def is_idle() -> bool:
            return running.servers[0].engine.running == 0

        return is_idle


class TestModelOnAPool(ModelContract):
    """With a real tokenizer, which the servers and the engine read from the same folder."""

    @pytest.fixture(params=WIRES)
    async def model(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Model]:
        tokenizer = write_tokenizer(tmp_path)
        turns = TurnRegistry()
        scripted = ScriptedEngine(FamilyMarkup(FAMILY, tokenizer), context_length=8000)
        servers = [
            TokenServer(
                scripted,
                wire=request.param,
                turns=turns,
                id_of=lambda text: tokenizer.encode(text, special=True)[0],
            )
            for _ in range(2)
        ]
        async with listening(*servers):
            urls = tuple(server.url for server in servers)
            options = VllmHttpOptions(urls=urls, model=str(tmp_path))
            engine = TellingEngine(["pool", "alias"], options)
            engine.turns = turns
            model = TokenModel(lambda: family_format(tokenizer), engine)
            await model.start()
            yield model
            await model.aclose()

    @pytest.fixture
    def ask(self, model: Model) -> TurnFactory:
        items = [Message(role="user", content=script({"say": TALE}))]
        return lambda **fields: Turn(model=model.names[0], items=items, **fields)


FAMILY = FAMILIES["hermes"]


def write_tokenizer(folder: Path) -> FolderTokenizer:
    """Write a tokenizer in which a marker of the family, or a word of logprobs, is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(tokenizer_of(FAMILY).added_tokens()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([word for word, _ in _OTHERS] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return FolderTokenizer.load(folder / "tokenizer.json")


def family_format(tokenizer: FolderTokenizer) -> ChatTemplateFormat:
    template = FamilyTemplate(FAMILY, FamilyTurns(FAMILY, tokenizer))
    end = tokenizer.token_id(end_marker(FAMILY))
    return ChatTemplateFormat(
        "hermes",
        FAMILY,
        tokenizer,
        renderer=TemplateRenderer(template, tokenizer, FAMILY),
        stop_token_ids=[] if end is None else [end],
    )
