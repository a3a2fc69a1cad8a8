"""The logprobs of visible text spell it byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.application.ports import Step
from antiphon.domain import deltas as d
from antiphon.domain.content import Logprob

Build = Callable[..., ChatTemplateParser]

TURN = (
    "<think>\nLet me 😀 think.\n</think>\n\nHello 😀, wörld <b>.\n\nMore: \n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\nDone.\n'
)
VISIBLE = ["Hello 😀, wörld <b>.\n\nMore:", "Done.\n"]


def logprob(token: bytes) -> Logprob:
    text = token.decode("utf-8", "replace")
    return Logprob(token=text, logprob=-len(token) / 10, bytes=tuple(token))


def tokens_of(text: str, cuts: Sequence[int]) -> list[bytes]:
    whole = text.encode()
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    return [whole[start:end] for start, end in pairwise(places)]


def steps_of(tokens: Sequence[bytes], size: int) -> list[Step]:
    """Make steps; like engines, hold a character back until it is complete."""
    steps, received, shown = [], b"", 0
    for start in range(0, len(tokens), size):
        batch = tokens[start : start + size]
        received += b"".join(batch)
        text = received.decode("utf-8", "ignore")
        steps.append(Step(text=text[shown:], logprobs=tuple(map(logprob, batch))))
        shown = len(text)
    return steps


def visible(parser: ChatTemplateParser, steps: Sequence[Step]) -> list[d.TextDelta]:
    deltas = [delta for step in steps for delta in parser.feed(step)] + parser.end()
    return [delta for delta in deltas if isinstance(delta, d.TextDelta)]


def text_of_bytes(deltas: Sequence[d.TextDelta]) -> str:
    return bytes(byte for delta in deltas for lp in delta.logprobs for byte in lp.bytes).decode()


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cuts=st.lists(st.integers(1, 190), max_size=60), size=st.integers(1, 9))
def test_logprobs_spell_the_visible_text(parser_of: Build, cuts: Sequence[int], size: int) -> None:
    deltas = visible(parser_of("hermes"), steps_of(tokens_of(TURN, cuts), size))
    assert "".join(delta.text for delta in deltas) == "".join(VISIBLE)
    assert text_of_bytes(deltas) == "".join(VISIBLE)


def test_a_token_that_is_partly_markup_is_cut(parser_of: Build) -> None:
    tokens = [b"<think>", b"Hm", b"</think>\n\nSo", b" be it.\n", b"<tool_call>"]
    deltas = visible(parser_of("hermes"), steps_of(tokens, 1))
    assert [(lp.token, lp.logprob) for delta in deltas for lp in delta.logprobs] == [
        ("So", -1.2),
        (" be it.\n", -0.8),
    ]


@pytest.mark.parametrize("size", [1, 2, 50])
def test_each_token_is_given_once(parser_of: Build, size: int) -> None:
    tokens = [word.encode() for word in ("One", " two", ".\n", " Three <", "4", " \n", "five")]
    deltas = visible(parser_of("hermes"), steps_of(tokens, size))
    assert [lp for delta in deltas for lp in delta.logprobs] == [logprob(t) for t in tokens]


def test_a_step_returns_its_own_logprobs(parser_of: Build) -> None:
    parser = parser_of("hermes")
    token = logprob(b"Hello")
    step = Step(text="Hello", logprobs=(token,))
    assert parser.feed(step) == [d.TextDelta("Hello", (token,))]


@pytest.mark.parametrize("size", [1, 2, 50])
def test_a_token_without_bytes_belongs_to_no_text(parser_of: Build, size: int) -> None:
    deltas = visible(parser_of("hermes"), steps_of([b"One", b"", b" two", b""], size))
    assert [lp.token for delta in deltas for lp in delta.logprobs] == ["One", " two"]
