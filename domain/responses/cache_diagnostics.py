"""Compare two prompts: whether the cache could give the later one what the earlier one has left
there, and if not, why (docs/reference/api.md#prompt-cache-diagnostics).

The tokens decide. What the requests say of their prompts only names the reason: of all that was
changed, it is the change without which the prompts would be the same for longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.domain.content import InputImage
from antiphon.domain.items import Item
from antiphon.domain.json import Json
from antiphon.domain.responses.traces import PrefixComparison
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


def reason_of(
    before: PromptParts,
    after: PromptParts,
    prefix: PrefixComparison,
    *,
    undone: Mapping[Part, int],
    all_undone: int,
) -> tuple[MissReason, str] | None:
    """Return why the prompts of `prefix` differ, and the part in which they do; None for a hit.

    `undone` tells of each changed part how many tokens would be shared if it were as before, and
    `all_undone` if all of them were.
    """
    shared, shorter = prefix.shared_tokens, min(prefix.parent_tokens, prefix.prompt_tokens)
    if shared == shorter:
        return None
    part = next((part for part in undone if undone[part] > shared), None)
    if part is None and all_undone > shared:  # several changes at the same token
        part = next(iter(undone))
    if part is not None:
        return REASONS[part], _place_in(part, before, after)
    first_other = _first_other_item(before, after)
    place = RENDERING if first_other is None else f"input[{first_other}]"
    if before.compactions != after.compactions or before.dropped != after.dropped:
        return "context_compacted", place
    if first_other is None and shared >= shorter - OPENING_TOKENS:
        return None
    return "input_changed", place


def first_other_image(before: PromptParts, after: PromptParts) -> tuple[int, list[Item]] | None:
    """Return where the first image is that is another one in `after`, and its items without it.

    Other pictures of one size have the same tokens, and caches tell them apart all the same. The
    place is the index of an item. None if all images of one prompt are those of the other.
    """
    pairs = zip(_images_in(before.items), _images_in(after.items), strict=False)
    found = next((b for a, b in pairs if a[2].image_url != b[2].image_url), None)
    if found is None:
        return None
    index, field, image = found
    item = after.items[index]
    rest = tuple(part for part in getattr(item, field) if part is not image)
    return index, [*after.items[:index], replace(item, **{field: rest}), *after.items[index + 1 :]]


def _images_in(items: Sequence[Item]) -> Iterator[tuple[int, str, InputImage]]:
    """Yield the images with the indices of their items, and the fields that hold them."""
    for index, item in enumerate(items):
        for field in ("content", "output"):
            parts = getattr(item, field, None)
            if isinstance(parts, tuple | list):
                yield from ((index, field, part) for part in parts if isinstance(part, InputImage))


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
