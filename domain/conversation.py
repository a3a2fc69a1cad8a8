"""The conversation: what a request adds, what carries over, what a model is shown of it
(docs/reference/api.md#what-the-model-is-shown).

Every item is kept twice: read, for our rules, and raw, so that whatever a client sent comes back
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.domain import items as i
from antiphon.domain import mcp
from antiphon.domain.content import InputImage, InputText, OutputText, Part
from antiphon.domain.decoding import decode_item
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.request import AnyFormat, Effort

NewId = Callable[[str], str]

INSTRUCTORS = ("system", "developer")
"""Roles whose messages tell the model what to do."""

UNFINISHED = ("incomplete", "in_progress")
"""What a call is that nobody finished writing."""


class Conversation(Struct, frozen=True, kw_only=True):
    """A conversation as an object of its own; its items are listed apart."""

    id: str
    object: str = "conversation"
    created_at: int
    metadata: dict[str, str] = {}


class Entry(Struct, frozen=True, kw_only=True):
    """An item of the conversation, with the JSON it came as."""

    item: i.AnyItem
    raw: Raw


def entry(item: i.AnyItem) -> Entry:
    """Return an entry for an item that we made ourselves."""
    return Entry(item=item, raw=Raw(_encode(item)))


def raw_items(given: str | Sequence[Raw] | None) -> Sequence[Raw]:
    """Return a request's `input` as items: a text is a message of the user."""
    if isinstance(given, str):
        return (entry(i.Message(role="user", content=given)).raw,)
    return given or ()


def entries(given: str | Sequence[Raw] | None, path: str = "input") -> list[Entry]:
    """Read a request's items at `path`. Raises: RequestError with the item's path."""
    if given is None:
        return []
    if isinstance(given, str):
        return [entry(i.Message(role="user", content=given))]
    return [
        Entry(item=decode_item(raw, f"{path}[{position}]"), raw=raw)
        for position, raw in enumerate(given)
    ]


def check_input(added: Sequence[Entry], path: str = "input") -> None:
    """Check what needs no history. Raises: RequestError."""
    for position, each in enumerate(added):
        item, place = each.item, f"{path}[{position}]"
        if isinstance(item, i.FunctionCallOutput) and not item.call_id and not item.name:
            raise missing_parameter(f"{place}.call_id")
        if isinstance(item, i.CompactionTrigger) and position < len(added) - 1:
            raise RequestError(
                "A 'compaction_trigger' must be the last item of the input.",
                param=place,
                code="invalid_value",
            )


def check_ids(
    history: Iterable[str | UnsetType | None], added: Iterable[i.Item], path: str = "input"
) -> None:
    """No item comes twice, nor with an id of `history`. Raises: RequestError."""
    seen = set(history)
    for item in added:
        if not item.id or isinstance(item, i.LocalShellCallOutput):  # which bears its call's id
            continue
        if item.id in seen:
            raise RequestError(
                f"Duplicate item found with id {str(item.id)[:100]}. Send each item once; what "
                "is part of the conversation need not be sent again.",
                param=path,
            )
        seen.add(item.id)


def tools_in_items(conversation: Sequence[Entry]) -> Iterator[tuple[int, int, Raw]]:
    """Return the tools that items bring, as (item's position, tool's position, JSON)."""
    for position, each in enumerate(conversation):
        if isinstance(each.item, i.AdditionalTools | i.ToolSearchOutput):
            for number, tool in enumerate(each.item.tools):
                yield position, number, Raw(msgspec.json.encode(tool))


def check_call_output_pairs(conversation: Iterable[i.Item]) -> None:
    """Every output answers a call, every complete call has its output. Raises: RequestError.

    The order does not matter (docs/reference/api.md#calls-and-their-outputs).
    """
    items = list(conversation)
    answered = {call_id for item in items if (call_id := i.answered_call_id(item)) is not None}
    asked: set[str] = set()
    for item in items:
        names = _names(item)
        asked.update(names)
        if names and answered.isdisjoint(names) and not _may_stay_open(item):
            raise RequestError(f"No tool output found for function call {names[0]}.", param="input")
    for call_id in answered - asked:
        raise RequestError(
            f"No tool call found for function call output with call_id {call_id}.", param="input"
        )


def calls_by_output(conversation: Iterable[i.Item]) -> Mapping[int, i.Item]:
    """Return the call that each output answers, by the `id()` of the output."""
    items = list(conversation)
    calls = {name: item for item in items for name in _names(item)}
    named = ((item, i.answered_call_id(item)) for item in items)
    found = {id(item): calls[name] for item, name in named if name in calls}
    # Searches of the server's have no call_id; their outputs come in the order of the calls.
    searches = (item for item in items if isinstance(item, i.ToolSearchCall) and not item.call_id)
    outputs = (item for item in items if isinstance(item, i.ToolSearchOutput) and not item.call_id)
    return found | {id(output): call for call, output in zip(searches, outputs, strict=False)}


def _names(item: i.Item) -> tuple[str, ...]:
    """Return by what an output may name this call; nothing if it is no call of the client's."""
    call_id = i.call_id_of(item)
    if call_id is None:
        return ()
    if isinstance(item, i.LocalShellCall) and item.id:
        return call_id, str(item.id)  # its output has no call_id, and some clients send the id
    return (call_id,)


def items_for_model(
    conversation: Sequence[i.AnyItem], *, all_reasoning: bool = False
) -> list[i.AnyItem]:
    """Return what a model is shown: nothing before the last compaction, no call that was cut, and
    no reasoning of turns that are finished (unless `all_reasoning`).

    A turn is finished by a user message or by a final answer.
    """
    start = _last(conversation, lambda item: isinstance(item, i.Compaction), default=0)
    kept = conversation[start:]
    current = 0 if all_reasoning else _last(kept, _finishes_a_turn, default=-1) + 1
    answered = {i.answered_call_id(item) for item in kept}
    return [
        item
        for position, item in enumerate(kept)
        if not (isinstance(item, i.Reasoning) and position < current)
        and not (_may_be_left_out(item) and i.call_id_of(item) not in answered)
        and not isinstance(item, i.CompactionTrigger)
    ]


class ActiveConfiguration(Struct, frozen=True, kw_only=True):
    """What `configuration_update` items set; None where none did."""

    effort: Effort | None = None
    format: AnyFormat | None = None


def active_configuration(conversation: Iterable[i.Item]) -> ActiveConfiguration:
    """Return what the newest updates say, each field by itself."""
    effort: Effort | None = None
    form: AnyFormat | None = None
    for item in conversation:
        if isinstance(item, i.ConfigurationUpdate):
            effort = (item.reasoning.effort if item.reasoning else None) or effort
            form = (item.text.format if item.text else None) or form
    return ActiveConfiguration(effort=effort, format=form)


def droppable_groups(conversation: Sequence[i.Item]) -> list[frozenset[int]]:
    """Return what may be dropped to make room, oldest first, as groups of positions.

    A call is one group with its outputs; instructions and the newest item are in no group.
    """
    groups: list[frozenset[int]] = []
    taken: set[int] = set()
    by_call: dict[str, set[int]] = {}
    for position, item in enumerate(conversation):
        call_id = i.call_id_of(item) or i.answered_call_id(item)
        if call_id:
            by_call.setdefault(call_id, set()).add(position)
    newest = len(conversation) - 1
    for position, item in enumerate(conversation):
        call_id = i.call_id_of(item) or i.answered_call_id(item)
        group = frozenset(by_call[call_id]) if call_id else frozenset({position})
        if position in taken or newest in group or _instructs(item):
            continue
        taken |= group
        groups.append(group)
    return groups


def leading_instructions(
    conversation: Sequence[i.Item],
) -> tuple[list[i.Message], Sequence[i.Item]]:
    """Return the system and developer messages that the conversation begins with, and the rest."""
    leading: list[i.Message] = []
    for item in conversation:
        if not _instructs(item):
            break
        leading.append(item)
    return leading, conversation[len(leading) :]


def to_resource(given: Entry, new_id: NewId) -> tuple[str, Raw]:
    """Return the item's id and its JSON as lists show it
    (docs/reference/api.md#items-in-lists).

    Every field that came is kept; what a list promises is added: type, id, status, content as
    parts.
    """
    item = given.item
    fields = _decode_fields(given.raw)
    item_id = item.id or new_id(i.ID_PREFIXES[type(item)])
    kind = str(type(item).__struct_config__.tag)
    full: dict[str, Any] = {"type": kind, "id": item_id} | {
        k: v for k, v in fields.items() if k not in ("id", "type")
    }
    if not getattr(item, "status", "has none"):
        full["status"] = "completed"
    if isinstance(item, i.Message):
        full["content"] = _parts(item, fields["content"])
    if isinstance(item, i.AdditionalTools | i.ToolSearchOutput):
        full["tools"] = [mcp.redact_secrets(tool) for tool in item.tools]
    return item_id, Raw(_encode(full))


# Texts stay as they came: only what is around them is read and written again.
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_parts = msgspec.json.Decoder(tuple[dict[str, Raw], ...]).decode
_encode = msgspec.json.Encoder().encode
_NULL = Raw(b"null")

_PART_DEFAULTS: Mapping[type[Part], Mapping[str, Any]] = {
    OutputText: {"annotations": [], "logprobs": []},
    InputImage: {"detail": "auto"},
}


def _parts(message: i.Message, content: Raw) -> list[Mapping[str, Any]]:
    if isinstance(message.content, str):
        kind = OutputText if message.role == "assistant" else InputText
        tag = kind.__struct_config__.tag
        return [{"type": tag, "text": content, **_PART_DEFAULTS.get(kind, {})}]
    read = message.content or ()
    came = _decode_parts(content) if read else ()
    return [
        {
            **_PART_DEFAULTS.get(type(part), {}),
            **{name: value for name, value in fields.items() if value != _NULL},
        }
        for part, fields in zip(read, came, strict=True)
    ]


def _may_stay_open(call: i.Item) -> bool:
    return _may_be_left_out(call) or getattr(call, "async_", UNSET) is True


def _may_be_left_out(call: i.Item) -> bool:
    return _was_cut(call) or i.is_server_run_call(call)


def _was_cut(item: i.Item) -> bool:
    # Whoever left in the middle of a stream replays its last call as it had come so far.
    return type(item) in i.ANSWERED_BY and getattr(item, "status", None) in UNFINISHED


def _finishes_a_turn(item: i.Item) -> bool:
    if not isinstance(item, i.Message):
        return False
    return item.role == "user" or (item.role == "assistant" and item.phase == "final_answer")


def _instructs(item: i.Item) -> TypeGuard[i.Message]:
    return isinstance(item, i.Message) and item.role in INSTRUCTORS


def _last(conversation: Sequence[i.Item], fits: Callable[[i.Item], bool], *, default: int) -> int:
    return next((n for n in reversed(range(len(conversation))) if fits(conversation[n])), default)
