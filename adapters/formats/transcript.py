"""The conversation as a chat model knows it: messages, reasoning, calls and their results.

An item of a hosted tool becomes a call and its result. Items that only steer the server are left
out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.adapters.formats.tools import (
    TEXT_PROPERTIES,
    description_of,
    input_parameters,
    wrap_text,
)
from antiphon.adapters.formats.turn_cache import MAX_WHOLE_CHARS, Author, TurnCache, brief
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import view_of
from antiphon.domain.json import Json
from antiphon.domain.kinds.mcp import called_mcp_name
from antiphon.domain.tools import ToolSpec
from antiphon.domain.vocabulary.shown import Call, JsonBody, Result, View, json_arguments

EntryPart = tuple[Literal["text", "image", "refusal"], str]
"""A part of a message: its text, or the URL of an image."""


class MessageEntry(Struct, frozen=True):
    role: str
    parts: Sequence[EntryPart]


class ReasoningEntry(Struct, frozen=True):
    text: str


class CallEntry(Struct, frozen=True):
    """`arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str
    call_id: str


class OutputEntry(Struct, frozen=True):
    name: str
    call_id: str
    parts: Sequence[EntryPart]


RAW_ARGUMENTS = "arguments"
"""Holds the arguments of a call that are no JSON object."""

Entry = MessageEntry | ReasoningEntry | CallEntry | OutputEntry


def transcript(items: Sequence[i.Item], tools: Sequence[ToolSpec]) -> Iterator[Entry]:
    """Yield the entries of a conversation; `tools` are the turn's.

    Raises: RequestError for content that chat models cannot read.
    """
    view = view_of(items, tools)
    call_ids = _unique_call_ids(items)
    approval_requests: dict[str, i.McpApprovalRequest] = {}
    for item in items:
        match item:
            case i.Message():
                yield MessageEntry(item.role, to_parts(item.content))
            case i.Reasoning():
                yield ReasoningEntry(reasoning_text(item))
            case i.McpApprovalRequest():
                approval_requests[str(item.id)] = item
            case i.McpApprovalResponse(approve=False) if (
                item.approval_request_id in approval_requests
            ):
                yield from _declined_call_entries(
                    approval_requests[item.approval_request_id], item, view
                )
            case _:
                yield from _tool_entries(item, view, call_ids)


def _tool_entries(item: i.Item, view: View, call_ids: Mapping[int, str]) -> Iterator[Entry]:
    """Yield an item's call and result, as its kind shows them."""
    shown = i.kind_of(item).shown
    caller = item if shown.call is not None else view.calls.get(id(item))
    call = _call_of(caller, view)
    if call is not None and caller is item:
        text_key = TEXT_PROPERTIES.get(call.kind)
        arguments = call.text if text_key is None else wrap_text(call.text, text_key)
        yield CallEntry(call.name, arguments, call_ids[id(item)])
    if shown.result is not None:
        result = shown.result(item, view)
        name = result.name if call is None else call.name
        call_id = call_ids.get(id(caller)) or _call_id(caller or item)
        yield OutputEntry(name, call_id, _result_parts(result))


def _call_of(item: i.Item | None, view: View) -> Call | None:
    call = i.kind_of(item).shown.call if item is not None else None
    return call(item, view) if call is not None else None


def _result_parts(result: Result) -> list[EntryPart]:
    body = result.body
    if isinstance(body, JsonBody):
        text = msgspec.json.encode(body.value).decode()
        if not result.is_error:
            return [("text", text)]
        return [("text", "Error: "), ("text", text)] if body.value else []
    return to_parts(body or result.status)


def chat_turn_cache() -> TurnCache[Entry]:
    """Return a cache of turns as entries. It ignores call ids, which this server makes up."""
    return TurnCache(_author_of, key=_comparison_key)


def _author_of(entry: Entry) -> Author:
    match entry:
        case ReasoningEntry():
            return "reasoning"
        case CallEntry() | MessageEntry(role="assistant"):
            return "model"
        case OutputEntry():
            return "tool"
    return "other"


def _comparison_key(entry: Entry) -> object:
    if isinstance(entry, CallEntry):
        return "call", entry.name, brief(entry.arguments)
    if isinstance(entry, ReasoningEntry):
        return brief(entry.text)
    author = entry.role if isinstance(entry, MessageEntry) else entry.name
    for _, text in entry.parts:
        if len(text) > MAX_WHOLE_CHARS:
            short = [(kind, brief(text)) for kind, text in entry.parts]
            return type(entry).__name__, author, short
    return type(entry).__name__, author, entry.parts


def to_parts(content: str | Sequence[c.Part] | None) -> list[EntryPart]:
    if isinstance(content, str):
        return [("text", content)] if content else []
    return [_to_part(part) for part in content or ()]


def _to_part(part: c.Part) -> EntryPart:
    match part:
        case c.Refusal():
            return "refusal", part.refusal
        case c.InputImage(image_url=str(url)):
            return "image", url
        case c.InputText(text=text) | c.OutputText(text=text) | c.PlainText(text=text):
            return "text", text
    kind = type(part).__struct_config__.tag
    raise RequestError(f"This model cannot read content of type {kind!r}.", param="input")


def joined_text(parts: Sequence[EntryPart]) -> str:
    """Return the text of the parts. Raises: RequestError if there are images."""
    if any(kind == "image" for kind, _ in parts):
        raise RequestError("This model cannot read images.", param="input")
    return "".join(text for _, text in parts)


def reasoning_text(item: i.Reasoning) -> str:
    """Return the reasoning itself, or its summary if it has no content."""
    text = "\n".join(part.text for part in item.content or ())
    return text or "\n\n".join(part.text for part in item.summary or ())


def to_object(arguments: str) -> Json:
    """Return arguments as templates expect them: as an object, which they write out.

    A call may have been cut off, or have been written wrongly. What is no object is under one key.

    >>> to_object('{"city": "Oslo"}'), to_object(""), to_object('{"city": "Oslo')
    ({'city': 'Oslo'}, {}, {'arguments': '{"city": "Oslo'})
    """
    try:
        value = json.loads(arguments or "null")
    except (ValueError, RecursionError):
        return {RAW_ARGUMENTS: arguments}
    if isinstance(value, dict):
        return value
    return {} if value is None else {RAW_ARGUMENTS: value}


def to_object_text(arguments: str) -> str:
    """Return arguments as the JSON text of an object; as they are if they are that."""
    value = to_object(arguments)
    is_object = RAW_ARGUMENTS not in value and arguments.lstrip().startswith("{")
    return arguments if is_object else json.dumps(value, ensure_ascii=False)


def parameters_of(tool: ToolSpec) -> Json:
    """Return the schema of the arguments that the model writes."""
    if tool.kind == "custom":
        return input_parameters()
    return tool.parameters or {"type": "object", "properties": {}}


def function_of(tool: ToolSpec) -> Json:
    """Return the tool as chat templates expect it: a function."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": description_of(tool),
            "parameters": parameters_of(tool),
        },
    }


def _unique_call_ids(items: Sequence[i.Item]) -> Mapping[int, str]:
    """Return an id for each call, by the `id()` of the item: its own unless an earlier call has it.

    Templates and servers find the call of a result by its id.
    """
    ids: dict[int, str] = {}
    used: set[str] = set()
    counts: Counter[str] = Counter()
    for item in items:
        if i.kind_of(item).shown.call is None:
            continue
        own_id = call_id = _call_id(item)
        while call_id in used:
            counts[own_id] += 1
            call_id = f"{own_id}_{counts[own_id]}"
        used.add(call_id)
        ids[id(item)] = call_id
    return ids


def _call_id(item: i.Item) -> str:
    return str(getattr(item, "call_id", None) or item.id or f"call_{type(item).__name__}")


def _declined_call_entries(
    request: i.McpApprovalRequest, response: i.McpApprovalResponse, view: View
) -> Iterator[Entry]:
    call_id = str(request.id)
    reason = f": {response.reason}" if response.reason else "."
    name = called_mcp_name(request, view.tools)
    yield CallEntry(name, json_arguments(request.arguments), call_id)
    yield OutputEntry(name, call_id, [("text", f"The user declined this call{reason}")])
