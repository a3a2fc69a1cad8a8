"""Clearing of old tool uses: their results leave the prompt, the rest of the conversation stays.

Anthropic's edit `clear_tool_uses_20250919` ("Context editing" in its docs), for clients of any API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon.domain import items as i
from antiphon.domain.bounds import MAX_MEMBERS, Count, Many, Name

CLEARED = "[The result was cleared to make room in the context.]"
"""The result of a use, as the model is shown it from then on."""

KEPT_USES = 3
TRIGGER_TOKENS = 100_000


class ClearTrigger(Struct, frozen=True, kw_only=True):
    type: Literal["input_tokens", "tool_uses"]
    value: Count


class KeptUses(Struct, frozen=True, kw_only=True):
    type: Literal["tool_uses"]
    value: Count


class LeastTokens(Struct, frozen=True, kw_only=True):
    type: Literal["input_tokens"]
    value: Count


class ClearToolUses(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="clear_tool_uses_20250919"
):
    """Clear the oldest tool uses of a prompt that is longer than the `trigger` (100,000 tokens).

    The last `keep` uses (3) stay, and all uses of `exclude_tools`. Nothing is cleared unless that
    saves `clear_at_least` tokens. `clear_tool_inputs`: arguments are cleared too, of all tools or
    of those named.
    """

    trigger: ClearTrigger | None = None
    keep: KeptUses | None = None
    clear_at_least: LeastTokens | None = None
    exclude_tools: Many[Name] | None = None
    clear_tool_inputs: bool | Annotated[tuple[Name, ...], Meta(max_length=MAX_MEMBERS)] | None = (
        None
    )


class ClearedToolUses(Struct, frozen=True, kw_only=True):
    """The number of uses that were cleared from a prompt, and of the tokens that this saved."""

    tool_uses: int
    input_tokens: int


def count_tool_uses(items: Sequence[i.Item]) -> int:
    """Return how many results of tools the conversation has."""
    return sum(isinstance(item, _RESULTS) for item in items)


def clear_tool_uses(items: Sequence[i.Item], edit: ClearToolUses) -> tuple[list[i.Item], int]:
    """Return the conversation without the results of its oldest tool uses, and their number.

    >>> call = i.FunctionCall(call_id="a", name="look", arguments="{}")
    >>> result = i.FunctionCallOutput(call_id="a", output="a tree")
    >>> edit = ClearToolUses(keep=KeptUses(type="tool_uses", value=0))
    >>> cleared, count = clear_tool_uses([call, result], edit)
    >>> cleared[1].output == CLEARED, count
    (True, 1)
    """
    names = {i.call_id_of(item): _name_of(item) for item in items}
    excluded = frozenset(edit.exclude_tools or ())

    def tool_of(item: i.Item) -> str | None:
        return _name_of(item) or names.get(i.answered_call_id(item))

    places = [
        place
        for place, item in enumerate(items)
        if isinstance(item, _RESULTS) and tool_of(item) not in excluded
    ]
    kept = KEPT_USES if edit.keep is None else edit.keep.value
    old = [place for place in places[: max(0, len(places) - kept)] if _has_result(items[place])]
    shown = list(items)
    for place in old:
        shown[place] = replace(items[place], output=CLEARED)
    if edit.clear_tool_inputs:
        answered = {i.answered_call_id(items[place]) for place in old} - {None}
        calls = [place for place, item in enumerate(items) if i.call_id_of(item) in answered]
        wanted = edit.clear_tool_inputs
        for place in (*old, *calls):
            if isinstance(wanted, bool) or _name_of(items[place]) in wanted:
                shown[place] = _without_input(shown[place])
    return shown, len(old)


_RESULTS = (i.FunctionCallOutput, i.CustomToolCallOutput, i.McpCall)


def _name_of(item: i.Item) -> str | None:
    return getattr(item, "name", None) or None


def _has_result(item: i.Item) -> bool:
    return getattr(item, "output", None) not in (None, "", CLEARED)


def _without_input(item: i.Item) -> i.Item:
    if isinstance(item, i.FunctionCall | i.McpCall):
        return replace(item, arguments="{}")
    return replace(item, input="") if isinstance(item, i.CustomToolCall) else item
