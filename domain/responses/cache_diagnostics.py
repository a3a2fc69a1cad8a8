"""Compare two prompts: whether the cache could give the later one what the earlier one has left
there, and if not, why (docs/reference/api.md#prompt-cache-diagnostics).

The tokens decide. What the requests say of their prompts only names the reason: of all that was
changed, it is the change without which the prompts would be the same for longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.domain.items import Item
from antiphon.domain.json import Json
from antiphon.domain.responses.traces import PrefixComparison, compare_prefix
from antiphon.domain.tools import ToolChoice, ToolSpec

OPENING_TOKENS = 16
"""How the answer is opened at a prompt's end may be written otherwise once it has been given. That
is no miss: caches keep whole blocks of tokens, seldom smaller ones."""

MissReason = Literal[
    "model_changed",
    "prompt_cache_key_changed",
    "tools_changed",
    "text_format_changed",
    "reasoning_effort_changed",
    "verbosity_changed",
    "context_compacted",
    "input_changed",
    "service_tier_changed",
]
"""The API's reasons. A service tier changes no prompt here, so it never is one."""

Part = Literal["tools", "text.format", "reasoning.effort", "text.verbosity", "instructions"]

REASONS: Mapping[Part, MissReason] = {
    "tools": "tools_changed",
    "text.format": "text_format_changed",
    "reasoning.effort": "reasoning_effort_changed",
    "text.verbosity": "verbosity_changed",
    "instructions": "input_changed",
}
"""The parts of a prompt besides its items, by their fields in a request."""

RENDERING = "rendering"
"""The part that differs if the same items were written with other tokens."""


class CacheHit(Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_hit"):
    """The prompts are the same as far as both go."""


class CacheMiss(Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_miss"):
    """The prompts differ.

    `comparison_reusable_tokens` are the same at the start of both. `cache_missed_tokens` are the
    others of the later prompt.
    """

    reason: MissReason
    cache_missed_tokens: int
    comparison_reusable_tokens: int


class ComparisonResponseNotFound(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="comparison_response_not_found"
):
    """The tenant has no stored response with the id."""


class DiagnosticsUnavailable(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="unavailable"
):
    """The prompt of the other response, or this one, is not known."""


CacheDiagnostics = CacheHit | CacheMiss | ComparisonResponseNotFound | DiagnosticsUnavailable


class PromptParts(Struct, frozen=True, kw_only=True):
    """A prompt, and what it was made of.

    `salt` names what keeps its cache apart, "" for nothing. `items` are those that the model was
    shown, `dropped` the number of those that truncation left out. `compactions` are the sealed
    texts of the compactions that stand for older items.
    """

    model: str
    token_ids: Sequence[int]
    salt: str = ""
    tools: Sequence[ToolSpec] = ()
    choice: ToolChoice = ToolChoice()
    text_format: Json = {}
    effort: str | None = None
    verbosity: str = "medium"
    instructions: str | None = None
    items: Sequence[Item] = ()
    dropped: int = 0
    compactions: frozenset[str] = frozenset()

    def part(self, part: Part) -> object:
        """Return a part by its field in a request."""
        match part:
            case "tools":
                return tuple(self.tools), self.choice
            case "text.format":
                return self.text_format
            case "reasoning.effort":
                return self.effort
            case "text.verbosity":
                return self.verbosity
        return self.instructions or None


class PromptComparison(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the prompt of a response compares with that of the response `response_id`.

    `result` and `reason` are as in `prompt_cache_diagnostics`. `differs_at` is the index of the
    first token that differs, absent if none does. `part` names what it belongs to, by its field in
    a request; an item is counted among those that the model was shown. `unavailable` says why the
    prompts could not be compared.
    """

    response_id: str
    result: str
    reason: MissReason | None = None
    part: str = ""
    compared_tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    differs_at: int | None = None
    unavailable: str = ""


def changed_parts(before: PromptParts, after: PromptParts) -> list[Part]:
    """Return the parts besides the items that are not the same."""
    return [part for part in REASONS if before.part(part) != after.part(part)]


def has_other_cache(before: PromptParts, after: PromptParts) -> MissReason | None:
    """Return why no token of one prompt can serve the other, whatever the prompts are."""
    if before.model != after.model:
        return "model_changed"
    return "prompt_cache_key_changed" if before.salt != after.salt else None


def compare(
    response_id: str, before: PromptParts, after: PromptParts
) -> tuple[PrefixComparison, bool]:
    """Compare the tokens of a prompt with those of `response_id`; return whether they are a hit."""
    prefix = compare_prefix(response_id, before.token_ids, after.token_ids)
    shorter = min(len(before.token_ids), len(after.token_ids))
    if prefix.shared_tokens == shorter:
        return prefix, True
    if prefix.shared_tokens < shorter - OPENING_TOKENS:
        return prefix, False
    is_same = not changed_parts(before, after) and not _is_shortened(before, after)
    return prefix, is_same and _first_other_item(before, after) is None


def reason_of(
    before: PromptParts,
    after: PromptParts,
    shared_tokens: int,
    *,
    undone: Mapping[Part, int],
    all_undone: int,
) -> tuple[MissReason, str]:
    """Return why two prompts differ after `shared_tokens`, and the part in which they do.

    `undone` tells of each changed part how many tokens would be shared if it were as before, and
    `all_undone` if all of them were.
    """
    for part in undone:
        if undone[part] > shared_tokens:
            return REASONS[part], _place_in(part, before, after)
    if all_undone > shared_tokens:  # several changes at the same token
        part = next(iter(undone))
        return REASONS[part], _place_in(part, before, after)
    first_other = _first_other_item(before, after)
    place = RENDERING if first_other is None else f"input[{first_other}]"
    if _is_shortened(before, after):
        return "context_compacted", place
    return "input_changed", place


def _is_shortened(before: PromptParts, after: PromptParts) -> bool:
    return before.compactions != after.compactions or before.dropped != after.dropped


def _place_in(part: Part, before: PromptParts, after: PromptParts) -> str:
    if part != "tools":
        return part
    pairs = enumerate(zip(before.tools, after.tools, strict=False))
    shorter = min(len(before.tools), len(after.tools))
    index = next((index for index, (a, b) in pairs if a != b), shorter)
    if index == len(before.tools) == len(after.tools):
        return "tool_choice"
    return f"tools[{index}]"


def _first_other_item(before: PromptParts, after: PromptParts) -> int | None:
    """Return the index of the first item that is not the same, None if one has all of the other."""
    pairs = enumerate(zip(before.items, after.items, strict=False))
    return next((index for index, (a, b) in pairs if a is not b and _told(a) != _told(b)), None)


def _told(item: Item) -> Any:
    """Return what a model is told of an item: not its id, nor how its text is wrapped."""
    fields: dict[str, Any] = msgspec.to_builtins(item)
    for name in ("id", "status"):
        fields.pop(name, None)
    content = fields.get("content")
    if isinstance(content, list | tuple) and all("text" in part for part in content):
        fields["content"] = "".join(part["text"] for part in content)
    return fields
