"""Fixtures that read what a model of a family writes, in any steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.families import FAMILIES, Family
from antiphon.adapters.formats.chat_template.families.own import markers_of_family
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.application.ports import Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec
from antiphon.testing.family import TOOLS

Read = Callable[..., list[d.Delta]]


@pytest.fixture
def tools() -> tuple[ToolSpec, ...]:
    return TOOLS


def tokenizer_of(family: Family) -> WordTokenizer:
    return WordTokenizer([*dict.fromkeys(markers_of_family(family)), "<unused>"])


@pytest.fixture
def parser_of() -> Callable[..., ChatTemplateParser]:
    def build(family: str, *, starts_in_reasoning: bool = False, **turn: Any) -> ChatTemplateParser:
        row = FAMILIES[family]
        built = Turn(model="m", items=(), **({"tools": TOOLS} | turn))
        return ChatTemplateParser(
            row, tokenizer_of(row), turn=built, starts_in_reasoning=starts_in_reasoning
        )

    return build


@pytest.fixture
def read(parser_of: Callable[..., ChatTemplateParser]) -> Read:
    """`read(family, text, cuts=[3, 8], …)` returns the deltas, with neighbors of a kind joined."""

    def run(family: str, text: str, /, *, cuts: Sequence[int] = (), **turn: Any) -> list[d.Delta]:
        parser = parser_of(family, **turn)
        deltas: list[d.Delta] = []
        for start, end in pairwise([0, *sorted(cuts), len(text)]):
            deltas += parser.feed(Step(text=text[start:end]))
        return joined([*deltas, *parser.end()])

    return run


def joined(deltas: Sequence[d.Delta]) -> list[d.Delta]:
    whole: list[d.Delta] = []
    for delta in deltas:
        before = whole[-1] if whole else None
        if hasattr(delta, "text") and type(before) is type(delta):
            whole[-1] = type(delta)(getattr(before, "text") + delta.text)  # noqa: B009
        else:
            whole.append(delta)
    return whole
