"""The conversation as a chat model knows it: messages, reasoning, calls and their results.

An item of a hosted tool becomes a call and its result. Items that only steer the server are left
out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.formats.tools import (
    CODE,
    browser_call_of,
    called_mcp_name,
    description_of,
    input_parameters,
    logs_of,
    model_tool_name,
    name_of_kind,
    tool_names_of,
    typed_call_of,
    wrap_text,
)
from antiphon.adapters.formats.turn_cache import Author, TurnCache
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.client_tools import KINDS_OF
from antiphon.domain.conversation import calls_by_output, only_messages
from antiphon.domain.errors import RequestError
from antiphon.domain.file_search import arguments_of, render_results
from antiphon.domain.json import Json
from antiphon.domain.tools import FILE_SEARCH, PYTHON, ToolSpec

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


Entry = MessageEntry | ReasoningEntry | CallEntry | OutputEntry


def transcript(items: Sequence[i.Item], tools: Sequence[ToolSpec]) -> Iterator[Entry]:
    """Yield the entries of a conversation; `tools` are the turn's.

    Raises: RequestError for content that chat models cannot read.
    """
    has_calls = not only_messages(items)
    calls = calls_by_output(items) if has_calls else {}  # a result does not name its tool
    file_search_results = render_results(items) if has_calls else {}
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
                    approval_requests[item.approval_request_id], item, tools
                )
            case i.FileSearchCall():
                name, call_id = name_of_kind(FILE_SEARCH, tools), _call_id(item)
                yield CallEntry(name, arguments_of(item.queries or ()), call_id)
                yield OutputEntry(name, call_id, [("text", file_search_results[id(item)])])
            case _ if type(item) in CALLS:
                name, arguments = CALLS[type(item)](item, tools)
                call_id = _call_id(item)
                yield CallEntry(name, arguments, call_id)
                if type(item) in RESULTS:
                    yield OutputEntry(name, call_id, RESULTS[type(item)](item))
            case _ if type(item) in OUTPUTS:
                call = calls.get(id(item))
                name = str(getattr(item, "name", None) or "tool")
                if call is not None:
                    name, _ = CALLS[type(call)](call, tools)
                yield OutputEntry(name, _call_id(call or item), OUTPUTS[type(item)](item))


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
    match entry:
        case CallEntry():
            return replace(entry, call_id="")
        case MessageEntry(author, parts) | OutputEntry(author, _, parts) if any(
            kind == "image" for kind, _ in parts
        ):
            # Images are large. Python computes the hash of a string only once.
            short = [
                (kind, hash(text)) if kind == "image" else (kind, text) for kind, text in parts
            ]
            return type(entry).__name__, author, short
        case OutputEntry():
            return replace(entry, call_id="")
    return entry


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


def to_json_text(arguments: Any) -> str:
    """Return arguments as the JSON text that a model would write."""
    return json.dumps(arguments, ensure_ascii=False)


def _call_id(item: i.Item) -> str:
    return str(getattr(item, "call_id", None) or item.id or f"call_{type(item).__name__}")


def _declined_call_entries(
    request: i.McpApprovalRequest, response: i.McpApprovalResponse, tools: Sequence[ToolSpec]
) -> Iterator[Entry]:
    call_id = str(request.id)
    reason = f": {response.reason}" if response.reason else "."
    name = called_mcp_name(request, tools)
    yield CallEntry(name, request.arguments, call_id)
    yield OutputEntry(name, call_id, [("text", f"The user declined this call{reason}")])


def _json_parts(value: Any) -> list[EntryPart]:
    return [("text", msgspec.json.encode(value).decode())]


def _log_parts(outputs: Sequence[Json] | None) -> list[EntryPart]:
    return [("text", logs_of(outputs or ()))]


def _mcp_result_parts(item: Any) -> list[EntryPart]:
    if item.output is not None:
        return to_parts(item.output)
    return [("text", "Error: "), *_json_parts(item.error)] if item.error else []


def _browser_call(item: i.WebSearchCall, tools: Sequence[ToolSpec]) -> tuple[str, str]:
    kind, arguments, _ = browser_call_of(item)
    return next((tool.name for tool in tools if tool.kind == kind), kind), arguments


def _called_name(item: Any, tools: Sequence[ToolSpec]) -> str:
    return model_tool_name(tools, item.name, item.namespace or None)


CALLS: Mapping[type[i.Item], Callable[[Any, Sequence[ToolSpec]], tuple[str, str]]] = {
    **dict.fromkeys(KINDS_OF, typed_call_of),
    i.FunctionCall: lambda item, tools: (_called_name(item, tools), item.arguments),
    i.CustomToolCall: lambda item, tools: (_called_name(item, tools), wrap_text(item.input)),
    i.McpCall: lambda item, tools: (called_mcp_name(item, tools), item.arguments),
    i.WebSearchCall: _browser_call,
    i.CodeInterpreterCall: lambda item, tools: (
        name_of_kind(PYTHON, tools),
        wrap_text(item.code or "", CODE),
    ),
    i.ImageGenerationCall: lambda item, _: (
        "image_generation",
        to_json_text({"prompt": item.revised_prompt} if item.revised_prompt else {}),
    ),
    i.Program: lambda item, _: ("program", to_json_text({"code": item.code})),
}
"""By item type, a function that returns the name and the arguments of the call."""

RESULTS: Mapping[type[i.Item], Callable[[Any], Sequence[EntryPart]]] = {
    i.McpCall: _mcp_result_parts,
    i.WebSearchCall: lambda item: [
        ("text", browser_call_of(item)[2] or item.status or "completed")
    ],
    i.CodeInterpreterCall: lambda item: _log_parts(item.outputs),
    i.ImageGenerationCall: lambda item: [("text", item.status or "completed")],
}
"""By item type, a function that returns the result, for calls that hold their result."""

OUTPUTS: Mapping[type[i.Item], Callable[[Any], Sequence[EntryPart]]] = {
    i.FunctionCallOutput: lambda item: to_parts(item.output),
    i.CustomToolCallOutput: lambda item: to_parts(item.output),
    i.ComputerCallOutput: lambda item: (
        [("image", item.output.image_url)] if item.output.image_url else []
    ),
    i.LocalShellCallOutput: lambda item: to_parts(item.output),
    i.ShellCallOutput: lambda item: _json_parts(item.output),
    i.ApplyPatchCallOutput: lambda item: to_parts(item.output or item.status or "completed"),
    i.ToolSearchOutput: lambda item: _json_parts({"tools": tool_names_of(item)}),
    i.ProgramOutput: lambda item: to_parts(item.result),
}
"""By item type, a function that returns the result, for results that are separate items."""
