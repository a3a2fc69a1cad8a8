"""Each kind declares all of its parts, and a part that is missing is named."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.items import ITEM_TYPES
from antiphon.domain.kinds import CALL_KINDS, ITEM_KINDS, KINDS, TOOL_KINDS
from antiphon.domain.kinds.multi_agent import MULTI_AGENT
from antiphon.domain.lifecycle import EVENT_TABLES
from antiphon.domain.vocabulary.kind import Declaration, IncompleteKind, Kind
from antiphon.domain.vocabulary.steps import InputOnly

DECLARATIONS: list[Declaration] = [
    *KINDS,
    *ITEM_KINDS.values(),
    *TOOL_KINDS.values(),
    *CALL_KINDS.values(),
]
PARTS = [
    pytest.param(declared, part.name, id=f"{number}-{type(declared).__name__}.{part.name}")
    for number, declared in enumerate(DECLARATIONS)
    for part in dataclasses.fields(declared)  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("declared", "part"), PARTS)
def test_a_part_that_is_missing_is_named_with_its_kind(declared: Any, part: str) -> None:
    parts = {each.name: getattr(declared, each.name) for each in dataclasses.fields(declared)}
    assert type(declared)(**parts) == declared
    del parts[part]
    with pytest.raises(IncompleteKind) as refused:
        type(declared)(**parts)
    assert str(refused.value).endswith(
        f"has no {part.replace('_', ' ')} ({type(declared).__name__}.{part})."
    )
    if part not in ("name", "item", "tool"):
        subject = parts.get("name") or (parts.get("item") or parts["tool"]).__struct_config__.tag
        assert repr(subject) in str(refused.value)


CLOCK = (Path(__file__).parent / "clock" / "kind.py").read_text(encoding="utf-8")


def clocks_without_a_part() -> Iterator[Any]:
    """Yield the module of a new kind without one part, and the name of the part."""
    declarations = {"ItemKind", "ToolKind", "CallKind", "Kind"}
    for number, node in enumerate(ast.walk(ast.parse(CLOCK))):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in declarations):
            continue
        for part in node.keywords:
            module = ast.parse(CLOCK)
            copy: Any = [*ast.walk(module)][number]
            copy.keywords = [each for each in copy.keywords if each.arg != part.arg]
            name = f"{copy.func.id}.{part.arg}"
            yield pytest.param(ast.unparse(module), name, id=name)


@pytest.mark.parametrize(("source", "part"), list(clocks_without_a_part()))
def test_a_new_kind_cannot_be_imported_without_a_part(source: str, part: str) -> None:
    with pytest.raises(IncompleteKind, match=rf"\({part}\)\.$"):
        exec(compile(source, "clock.py", "exec"), {"__name__": "clock"})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_declares_an_item_or_a_tool(kind: Kind) -> None:
    assert kind.items or kind.tools


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_call_becomes_an_item_that_can_be_output(kind: Kind) -> None:
    for call in kind.calls:
        assert call.item in EVENT_TABLES


@pytest.mark.parametrize("name", CALL_KINDS)
def test_every_kind_of_call_can_be_chosen_unless_no_tool_of_a_request_offers_it(name: str) -> None:
    choosing = [kind for kind in TOOL_KINDS.values() if name in (kind.chosen or ())]
    refused = [each for each in TOOL_KINDS if TOOL_KINDS[each].chosen is None]
    assert choosing or CALL_KINDS[name].tool_type in (*refused, MULTI_AGENT)


@pytest.mark.parametrize("tool", [name for name, kind in TOOL_KINDS.items() if kind.chosen])
def test_a_choice_selects_only_kinds_of_calls_that_exist(tool: str) -> None:
    assert set(TOOL_KINDS[tool].chosen or ()) <= set(CALL_KINDS)


def test_no_two_kinds_share_the_prefix_of_their_ids() -> None:
    prefixes = [kind.prefix for kind in ITEM_KINDS.values() if kind.prefix is not None]
    assert len(set(prefixes)) == len(prefixes)


@pytest.mark.parametrize("name", ITEM_TYPES)
def test_an_item_that_a_call_waits_for_is_shown_as_its_result(name: str) -> None:
    answer = ITEM_KINDS[name].answered_by
    if answer is None:
        return
    assert ITEM_KINDS[name].shown.call is not None
    assert ITEM_KINDS[str(answer.__struct_config__.tag)].shown.result is not None


@pytest.mark.parametrize("name", ITEM_TYPES)
def test_what_the_server_did_is_shown_to_the_model_that_goes_on(name: str) -> None:
    kind = ITEM_KINDS[name]
    if kind.next == "model" and name != "mcp_list_tools":  # whose tools the prompt offers
        assert kind.shown.result is not None
        assert not isinstance(kind.events, InputOnly)
