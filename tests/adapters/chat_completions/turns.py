"""Turns of a model on a Chat Completions server, and what their deltas say."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from tests.http.conftest import script

from antiphon.adapters.models.chat_completions import ChatCompletionsModel
from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.tools import ToolSpec

TOOLS = [
    ToolSpec(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}),
    ToolSpec(name="now", parameters={"type": "object", "properties": {}}),
    ToolSpec(name="note", kind="custom"),
]


def turn_of(*parts: Any, **fields: Any) -> Turn:
    items = [i.Message(role="user", content=script(list(parts)))]
    return Turn(model="mine", items=items, tools=TOOLS, **fields)


async def read(model: ChatCompletionsModel, turn: Turn) -> list[d.Delta]:
    started = await model.start_turn(turn, request_id="r")
    async with aclosing(aiter(started)) as batches:
        return [delta async for deltas in batches for delta in deltas]


def join(deltas: list[d.Delta]) -> list[Any]:
    """Return what the deltas say, however it was cut: a tuple for each text and each call."""
    joined: list[Any] = []
    for delta in deltas:
        match delta:
            case d.CallStart():
                joined.append(("call", delta.name, delta.kind, ""))
            case d.ArgumentsDelta(text):
                joined[-1] = (*joined[-1][:-1], joined[-1][-1] + text)
            case d.TextDelta() | d.ReasoningDelta() | d.RefusalDelta():
                kind = type(delta).__name__
                if joined and joined[-1][0] == kind:
                    joined[-1] = (kind, joined[-1][1] + delta.text)
                else:
                    joined.append((kind, delta.text))
            case d.TurnEnd():
                joined.append(delta.reason)
    return joined
