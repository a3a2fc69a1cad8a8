"""Fixtures for Harmony: a format with a fixed date, and steps made from markup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyParser
from antiphon.adapters.formats.harmony.encoding import Encoding, load_encoding
from antiphon.application.ports import Prompt, Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.items import Item
from antiphon.domain.tools import ToolSpec

TOOLS = (
    ToolSpec(name="get_weather", parameters={"type": "object", "properties": {}}),
    ToolSpec(name="crm__find", namespace="crm", original_name="find"),
    ToolSpec(name="note", kind="custom"),
)

NO_PROMPT = Prompt(token_ids=())
"""What a constraint of this format does not look at."""

Parse = Callable[..., list[d.Delta]]


@pytest.fixture(scope="session")
def encoding() -> Encoding:
    return load_encoding()


@pytest.fixture
def harmony() -> HarmonyFormat:
    return HarmonyFormat(today=lambda: "2026-11-20")


@pytest.fixture
def render(harmony: HarmonyFormat) -> Callable[[Turn], Prompt]:
    return lambda turn: asyncio.run(harmony.render(turn))


@pytest.fixture
def prompt_text(render: Callable[[Turn], Prompt], encoding: Encoding) -> Callable[[Turn], str]:
    return lambda turn: encoding.text(render(turn).token_ids)


@pytest.fixture
def parser() -> HarmonyParser:
    return HarmonyParser(load_encoding(), a_turn())


@pytest.fixture
def parse(parser: HarmonyParser, encoding: Encoding) -> Parse:
    """Parse markup one token at a time and return the deltas, joined."""

    def parse(markup: str) -> list[d.Delta]:
        return joined(feed(parser, encoding.encode_markup(markup)))

    return parse


def a_turn(**fields: object) -> Turn:
    return Turn(**{"model": "gpt-oss", "items": (), "tools": TOOLS, **fields})  # type: ignore[arg-type]


def feed(parser: HarmonyParser, ids: Sequence[int], *, size: int = 1) -> list[d.Delta]:
    steps = [Step(token_ids=ids[start : start + size]) for start in range(0, len(ids), size)]
    return [delta for step in steps for delta in parser.feed(step)] + parser.end()


def joined(deltas: Sequence[d.Delta]) -> list[d.Delta]:
    """Join neighbors that continue the same item, as the sequencer does."""
    out: list[d.Delta] = []
    for delta in deltas:
        match (out[-1] if out else None), delta:
            case d.TextDelta() as last, d.TextDelta() if last.phase == delta.phase:
                logprobs = last.logprobs + delta.logprobs
                out[-1] = d.TextDelta(last.text + delta.text, logprobs, last.phase)
            case d.ReasoningDelta() as last, d.ReasoningDelta():
                out[-1] = d.ReasoningDelta(last.text + delta.text)
            case d.ArgumentsDelta() as last, d.ArgumentsDelta():
                out[-1] = d.ArgumentsDelta(last.text + delta.text)
            case d.RefusalDelta() as last, d.RefusalDelta():
                out[-1] = d.RefusalDelta(last.text + delta.text)
            case _:
                out.append(delta)
    return out


def parsed(
    harmony: HarmonyFormat,
    render: Callable[[Turn], Prompt],
    turn: Turn,
    ids: list[int],
    *items: Item,
) -> list[d.Delta]:
    """Parse the output of a turn, and remember that it became `items`."""
    parser = harmony.make_parser(turn, render(turn))
    deltas = joined([*parser.feed(Step(token_ids=ids)), *parser.end()])
    harmony.remember(turn, render(turn), token_ids=ids, parser=parser, items=items)
    return deltas
