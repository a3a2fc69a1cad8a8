"""Scripted models whose engines do not start, die, or fail when a test says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import EngineRequest, Model, Steps, Turn
from antiphon.domain.deltas import Delta, TextDelta
from antiphon.domain.errors import EngineError
from antiphon.domain.items import Message


class FlakyEngine(ScriptedEngine):
    """Raises the next of `start_errors` at each start, until there is none left.

    With a `refusal`, it admits no run. `starts` and `closes` count the calls.
    """

    def __init__(self, *names: str, start_errors: Sequence[Exception] = ()) -> None:
        super().__init__(ScriptedMarkup(), names)
        self.start_errors = list(start_errors)
        self.refusal: Exception | None = None
        self.starts = self.closes = 0

    async def start(self) -> None:
        self.starts += 1
        if self.start_errors:
            raise self.start_errors.pop(0)
        await super().start()

    async def aclose(self) -> None:
        self.closes += 1
        await super().aclose()

    async def generate(self, request: EngineRequest) -> Steps:
        if self.refusal is not None:
            raise self.refusal
        return await super().generate(request)

    def die(self) -> None:
        self._die("it died")


def model_on(engine: FlakyEngine) -> Model:
    return TokenModel(scripted_chat, engine)


def play(*turn: dict[str, Any], model: str = "a", **fields: Any) -> Turn:
    """Return a turn in which the model does as the script says."""
    items = [Message(role="user", content=f"@@script {json.dumps([list(turn)])}")]
    return Turn(model=model, items=items, **fields)


async def text_of(model: Model, turn: Turn) -> str:
    """Run the turn and return its text. After an error, the text so far is in the error's notes."""
    deltas: list[Delta] = []
    try:
        admitted = await model.start_turn(turn, request_id="run")
        async with aclosing(aiter(admitted)) as batches:
            async for batch in batches:
                deltas += batch
    except EngineError as error:
        error.add_note(_text(deltas))
        raise
    return _text(deltas)


def _text(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
