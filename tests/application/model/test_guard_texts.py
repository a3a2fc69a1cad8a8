"""The texts that guards are asked about, and the values that are no text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.application.model.test_guarded_turn import Words

from antiphon.application.model.guards.ask_guards import Guards, NamedGuard, ResponseGuards
from antiphon.application.model.guards.check_result import check_result
from antiphon.application.model.guards.texts import NOT_TEXT, texts_in, with_texts
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.domain import deltas as d
from antiphon.domain.access.callers import ANYBODY
from antiphon.domain.responses.guards import Refuse

KEYS = st.one_of(st.sampled_from(sorted(NOT_TEXT)), st.text(max_size=4))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)


@given(JSON)
def test_a_value_with_its_own_texts_is_the_same(value: Any) -> None:
    assert with_texts(value, iter(texts_in(value))) == value


@given(JSON)
def test_each_text_is_replaced_and_nothing_else(value: Any) -> None:
    texts = texts_in(value)
    changed = with_texts(value, iter([f"<{number}>" for number in range(len(texts))]))
    assert texts_in(changed) == [f"<{number}>" for number in range(len(texts))]
    assert with_texts(changed, iter(texts)) == value


def guards_of(guard: Words) -> ResponseGuards:
    named = NamedGuard(name="words", guard=guard)
    opened = Guards([named]).open(ANYBODY, response_id="r", model="m", recorder=RunRecorder())
    assert opened is not None
    return opened


def test_an_image_is_no_text_and_its_prompt_is() -> None:
    guard = Words("mask")
    end = d.ToolEnd("completed", {"result": "abbaabba", "revised_prompt": "An abba."})
    call = d.CallStart("image_generation", kind="image_generation")
    [[shown]] = asyncio.run(check_result(guards_of(guard), call, lambda _: [], [[end]]))
    assert isinstance(shown, d.ToolEnd)
    assert shown.fields == {"result": "abbaabba", "revised_prompt": "An ****."}
    assert [asked.text for asked in guard.asked] == ["An abba."]


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        (["fine", "too"], ["fine", "too"]),
        (["an abba", "and abba"], ["an ****", "and ****"]),
        (["fine", "abba"], ["fine", "****"]),
    ],
)
def test_several_texts_are_replaced_each_by_itself(texts: list[str], answer: list[str]) -> None:
    found = asyncio.run(guards_of(Words("mask")).ask_about_all(texts, "input"))
    assert found == answer


def test_a_word_over_two_texts_is_refused_since_neither_can_be_replaced() -> None:
    class Lines(Words):
        async def check(self, asked: Any) -> Any:
            return await super().check(
                type(asked)(place=asked.place, text=asked.text.replace("\n", ""))
            )

    found = asyncio.run(guards_of(Lines("mask")).ask_about_all(["ab", "ba"], "input"))
    assert isinstance(found, Refuse)
