"""Why two prompts differ: the rule, without any model."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.domain.items import Message
from antiphon.domain.responses.cache_diagnostics import (
    OPENING_TOKENS,
    PromptParts,
    has_other_cache,
    reason_of,
)
from antiphon.domain.responses.traces import compare_prefix
from antiphon.domain.tools import ToolChoice, ToolSpec

LONG = list(range(100))
A, B = ToolSpec(name="a"), ToolSpec(name="b")


def said(text: str) -> Message:
    return Message(role="user", content=text)


def parts(tokens: list[int] = LONG, **fields: Any) -> PromptParts:
    return PromptParts(**{"model": "m", "token_ids": tokens, "items": [said("a")], **fields})


def changed(at: int) -> list[int]:
    return [*LONG[:at], 999, *LONG[at + 1 :]]


UNDONE = [
    ({}, {}, {}, 0, ("input_changed", "rendering")),
    ({}, {"items": [said("b")]}, {}, 0, ("input_changed", "input[0]")),
    ({}, {"items": [said("b")], "dropped": 1}, {}, 0, ("context_compacted", "input[0]")),
    ({}, {"compactions": frozenset({"x"})}, {}, 0, ("context_compacted", "rendering")),
    ({"tools": [A]}, {"tools": [B]}, {"tools": 50}, 0, ("tools_changed", "tools[0]")),
    ({"tools": [A]}, {"tools": [A, B]}, {"tools": 50}, 0, ("tools_changed", "tools[1]")),
    (
        {"tools": [A]},
        {"tools": [A], "choice": ToolChoice(mode="none")},
        {"tools": 50},
        0,
        ("tools_changed", "tool_choice"),
    ),
    # The tools were changed, too, but without them the prompts would differ as early.
    (
        {"tools": [A], "effort": "low"},
        {"tools": [B], "effort": "high"},
        {"tools": 40, "reasoning.effort": 60},
        100,
        ("reasoning_effort_changed", "reasoning.effort"),
    ),
    # Each of two changes is enough to make the token another one.
    (
        {"tools": [A], "instructions": "x"},
        {"tools": [B], "instructions": "y"},
        {"tools": 40, "instructions": 40},
        100,
        ("tools_changed", "tools[0]"),
    ),
    # Neither change is shown by the prompt; an item is the reason.
    (
        {"tools": [A], "effort": "low"},
        {"tools": [B], "effort": "high", "items": [said("b")]},
        {"tools": 40, "reasoning.effort": 40},
        40,
        ("input_changed", "input[0]"),
    ),
]


@pytest.mark.parametrize(("before", "after", "undone", "all_undone", "expected"), UNDONE)
def test_the_change_that_explains_the_token_is_the_reason(
    before: Any, after: Any, undone: Any, all_undone: int, expected: tuple[str, str]
) -> None:
    one, other = parts(**before), parts(changed(40), **after)
    prefix = compare_prefix("resp_1", one.token_ids, other.token_ids)
    assert prefix.shared_tokens == 40
    assert reason_of(one, other, prefix, undone=undone, all_undone=all_undone) == expected


@pytest.mark.parametrize(
    ("tokens", "fields", "is_hit"),
    [
        (LONG, {}, True),
        ([*LONG, 1, 2], {"items": [said("b")]}, True),
        (LONG[:50], {}, True),
        (changed(100 - OPENING_TOKENS), {}, True),
        (changed(99 - OPENING_TOKENS), {}, False),
        (changed(99), {"items": [said("a"), said("b")]}, True),
        (changed(99), {"items": [said("b")]}, False),
        (changed(99), {"dropped": 1}, False),
    ],
)
def test_prompts_are_the_same_up_to_how_they_open_the_answer(
    tokens: list[int], fields: Any, is_hit: bool
) -> None:
    one, other = parts(), parts(tokens, **fields)
    prefix = compare_prefix("resp_1", one.token_ids, other.token_ids)
    assert (reason_of(one, other, prefix, undone={}, all_undone=0) is None) is is_hit


def test_models_and_salts_have_caches_of_their_own() -> None:
    assert has_other_cache(parts(), parts()) is None
    assert has_other_cache(parts(), parts(model="n", salt="x")) == "model_changed"
    assert has_other_cache(parts(), parts(salt="x")) == "prompt_cache_key_changed"


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 4097, 8191, 9999])
def test_the_first_token_that_differs_is_found_in_prompts_of_any_length(at: int) -> None:
    one = list(range(10_000))
    other = (*one[:at], -1, *one[at + 1 :], 7)
    assert compare_prefix("resp_1", one, other).differs_at == at
    assert compare_prefix("resp_1", one[:at], other).differs_at is None
