"""Old tool uses leave the prompt: their results, on request their arguments, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain import items as i
from antiphon.domain.history.tool_uses import (
    CLEARED,
    ClearToolUses,
    KeptUses,
    clear_tool_uses,
    count_tool_uses,
)

TOOLS = ("look", "read", "write")


def use(number: int, name: str, kind: str) -> list[i.Item]:
    call_id, result = f"call_{number}", f"result {number}"
    if kind == "mcp":
        return [i.McpCall(server_label="s", name=name, arguments='{"a": 1}', output=result)]
    if kind == "custom":
        return [
            i.CustomToolCall(call_id=call_id, name=name, input="in"),
            i.CustomToolCallOutput(call_id=call_id, output=result),
        ]
    return [
        i.FunctionCall(call_id=call_id, name=name, arguments='{"a": 1}'),
        i.FunctionCallOutput(call_id=call_id, output=result),
    ]


USES = st.lists(
    st.tuples(st.sampled_from(TOOLS), st.sampled_from(("function", "custom", "mcp"))), max_size=8
)


def conversation(uses: Sequence[tuple[str, str]]) -> list[i.Item]:
    said: list[i.Item] = [i.Message(role="user", content="Go.")]
    for number, (name, kind) in enumerate(uses):
        said += [*use(number, name, kind), i.Message(role="assistant", content=f"Done {number}.")]
    return said


def edit(kept: int, **fields: Any) -> ClearToolUses:
    return ClearToolUses(keep=KeptUses(type="tool_uses", value=kept), **fields)


def results(items: Sequence[i.Item]) -> list[Any]:
    kinds = (i.FunctionCallOutput, i.CustomToolCallOutput, i.McpCall)
    return [item.output for item in items if isinstance(item, kinds)]


@given(USES, st.integers(0, 9))
def test_the_oldest_results_are_cleared_and_the_newest_stay(
    uses: list[tuple[str, str]], kept: int
) -> None:
    items = conversation(uses)
    shown, count = clear_tool_uses(items, edit(kept))
    assert count == max(0, len(uses) - kept)
    assert count_tool_uses(items) == len(uses)
    assert results(shown) == [CLEARED] * count + results(items)[count:]
    changed = [n for n, item in enumerate(shown) if item is not items[n]]
    assert len(changed) == count


@given(USES, st.sets(st.sampled_from(TOOLS)))
def test_the_results_of_excluded_tools_stay(uses: list[tuple[str, str]], names: set[str]) -> None:
    items = conversation(uses)
    shown, count = clear_tool_uses(items, edit(0, exclude_tools=tuple(names)))
    assert count == sum(name not in names for name, _ in uses)
    for (name, _), before, after in zip(uses, results(items), results(shown), strict=True):
        assert after == (before if name in names else CLEARED)


@given(USES, st.one_of(st.booleans(), st.sets(st.sampled_from(TOOLS))))
def test_arguments_are_cleared_with_their_results_on_request(
    uses: list[tuple[str, str]], named: bool | set[str]
) -> None:
    wanted = named if isinstance(named, bool) else tuple(named)
    shown, count = clear_tool_uses(conversation(uses), edit(2, clear_tool_inputs=wanted))
    told = [
        item.input if isinstance(item, i.CustomToolCall) else item.arguments
        for item in shown
        if isinstance(item, i.FunctionCall | i.CustomToolCall | i.McpCall)
    ]
    for place, ((name, kind), found) in enumerate(zip(uses, told, strict=True)):
        is_cleared = place < count and (named is True or (named is not False and name in named))
        empty, full = ("", "in") if kind == "custom" else ("{}", '{"a": 1}')
        assert found == (empty if is_cleared else full)


@pytest.mark.parametrize("repeats", [2, 3])
def test_what_is_cleared_once_is_not_counted_again(repeats: int) -> None:
    items: Sequence[i.Item] = conversation([("look", "function")] * 3)
    for _ in range(repeats):
        items, count = clear_tool_uses(items, edit(1))
    assert count == 0
