"""Both scripted models keep the promises of a model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from antiphon.application.ports import Model, Turn
from antiphon.domain.items import Message
from antiphon.entrypoints.settings import load
from antiphon.entrypoints.wiring.models import build_models
from antiphon.testing.model import ModelContract, TurnFactory

WORDS = " ".join(f"word{n}" for n in range(40))


class TestScriptedModel(ModelContract):
    @pytest.fixture(params=["scripted-chat", "scripted-harmony"])
    async def model(self, request: pytest.FixtureRequest) -> AsyncIterator[Model]:
        settings = load(None, {}, {"model": request.param, "scripted.context_length": 4000})
        [model] = build_models(settings)
        await model.start()
        yield model
        await model.aclose()

    @pytest.fixture
    def ask(self, model: Model) -> TurnFactory:
        items = [Message(role="user", content=f"@@script {json.dumps([{'say': WORDS}])}")]
        return lambda **fields: Turn(model=model.names[0], items=items, **fields)
