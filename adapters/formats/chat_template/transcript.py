"""The conversation as a chat model knows it: who said what, what was called, what came back.

Items of hosted tools are calls with their results; items that only steer the server are nothing.
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
    tool_names_of,
    input_parameters,
    logs_of,
    model_tool_name,
    name_of_kind,
    typed_call_of,
    wrap_text,
)
from antiphon.adapters.formats.turn_cache import Author, TurnCache
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.client_tools import KINDS_OF
from antiphon.domain.conversation import calls_by_output
from antiphon.domain.errors import RequestError
from antiphon.domain.file_search import arguments_of, render_results
from antiphon.domain.json import Json
from antiphon.domain.tools import FILE_SEARCH, PYTHON, ToolSpec

Piece = tuple[Literal["text", "image", "refusal"], str]
"""A part of what was said; an image is its URL."""


class MessageEntry(Struct, frozen=True):
    role: str
    pieces: Sequence[Piece]


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
    pieces: Sequence[Piece]


Entry = MessageEntry | ReasoningEntry | CallEntry | OutputEntry


def transcript(items: Sequence[i.Item], tools: Sequence[ToolSpec]) -> Iterator[Entry]:
    """`tools` are those of the turn.

    Raises: RequestError for content that no chat model here can be given.
    """
    calls = calls_by_output(items)  # a result does not say whose it is
    shown = render_results(items)
    asked: dict[str, i.McpApprovalRequest] = {}
    for item in items:
        match item:
            case i.Message():
                yield MessageEntry(item.role, pieces(item.content))
            case i.Reasoning():
                yield ReasoningEntry(reasoning_text(item))
            case i.McpApprovalRequest():
                asked[str(item.id)] = item
            case i.McpApprovalResponse(approve=False) if item.approval_request_id in asked:
                yield from _declined(asked[item.approval_request_id], item, tools)
            case i.FileSearchCall():
                name, call_id = name_of_kind(FILE_SEARCH, tools), _call_id(item)
                yield CallEntry(name, arguments_of(item.queries or ()), call_id)
                yield OutputEntry(name, call_id, [("text", shown[id(item)])])
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
    """Return a memory of turns as they are told here; ids are ours, so they tell no turn apart."""
    return TurnCache(_author, key=_told)


def _author(entry: Entry) -> Author:
    match entry:
        case ReasoningEntry():
            return "reasoning"
        case CallEntry() | MessageEntry(role="assistant"):
            return "model"
        case OutputEntry():
            return "tool"
    return "other"


def _told(entry: Entry) -> object:
    match entry:
        case CallEntry():
            return replace(entry, call_id="")
        case MessageEntry(by, pieces) | OutputEntry(by, _, pieces) if any(
            kind == "image" for kind, _ in pieces
        ):
            # Images are large: their hash is computed once, by Python itself.
            short = [
                (kind, hash(text)) if kind == "image" else (kind, text) for kind, text in pieces
            ]
            return type(entry).__name__, by, short
        case OutputEntry():
            return replace(entry, call_id="")
    return entry


def pieces(content: str | Sequence[c.Part] | None) -> list[Piece]:
    if isinstance(content, str):
        return [("text", content)] if content else []
    return [_piece(part) for part in content or ()]


def _piece(part: c.Part) -> Piece:
    match part:
        case c.Refusal():
            return "refusal", part.refusal
        case c.InputImage(image_url=str(url)):
            return "image", url
        case c.InputText(text=text) | c.OutputText(text=text) | c.PlainText(text=text):
            return "text", text
    kind = type(part).__struct_config__.tag
    raise RequestError(f"This model takes no content of type {kind!r}.", param="input")


def text_of(pieces: Sequence[Piece]) -> str:
    """Return what was said as text. Raises: RequestError if it is more than that."""
    if any(kind == "image" for kind, _ in pieces):
        raise RequestError("This model takes no images.", param="input")
    return "".join(text for _, text in pieces)


def reasoning_text(item: i.Reasoning) -> str:
    """Return the raw reasoning; its summary only where there is nothing else."""
    raw = "\n".join(part.text for part in item.content or ())
    return raw or "\n\n".join(part.text for part in item.summary or ())


def parameters_of(tool: ToolSpec) -> Json:
    """Return the schema of the arguments as the model writes them."""
    if tool.kind == "custom":
        return input_parameters()
    return tool.parameters or {"type": "object", "properties": {}}


def function_of(tool: ToolSpec) -> Json:
    """Return the tool as chat templates take it: a function."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": description_of(tool),
            "parameters": parameters_of(tool),
        },
    }


def written(arguments: Any) -> str:
    """Return arguments as the JSON text that a model would write."""
    return json.dumps(arguments, ensure_ascii=False)


def _call_id(item: i.Item) -> str:
    return str(getattr(item, "call_id", None) or item.id or f"call_{type(item).__name__}")


def _declined(
    request: i.McpApprovalRequest, response: i.McpApprovalResponse, tools: Sequence[ToolSpec]
) -> Iterator[Entry]:
    call_id = str(request.id)
    reason = f": {response.reason}" if response.reason else "."
    name = called_mcp_name(request, tools)
    yield CallEntry(name, request.arguments, call_id)
    yield OutputEntry(name, call_id, [("text", f"The user declined this call{reason}")])


def _json(value: Any) -> list[Piece]:
    return [("text", msgspec.json.encode(value).decode())]


def _logs(outputs: Sequence[Json] | None) -> list[Piece]:
    return [("text", logs_of(outputs or ()))]


def _mcp_result(item: Any) -> list[Piece]:
    if item.output is not None:
        return pieces(item.output)
    return [("text", "Error: "), *_json(item.error)] if item.error else []


def _browsed(item: i.WebSearchCall, tools: Sequence[ToolSpec]) -> tuple[str, str]:
    kind, arguments, _ = browser_call_of(item)
    return next((tool.name for tool in tools if tool.kind == kind), kind), arguments


def _named(item: Any, tools: Sequence[ToolSpec]) -> str:
    return model_tool_name(tools, item.name, item.namespace or None)


CALLS: Mapping[type[i.Item], Callable[[Any, Sequence[ToolSpec]], tuple[str, str]]] = {
    **dict.fromkeys(KINDS_OF, typed_call_of),
    i.FunctionCall: lambda item, tools: (_named(item, tools), item.arguments),
    i.CustomToolCall: lambda item, tools: (_named(item, tools), wrap_text(item.input)),
    i.McpCall: lambda item, tools: (called_mcp_name(item, tools), item.arguments),
    i.WebSearchCall: _browsed,
    i.CodeInterpreterCall: lambda item, tools: (
        name_of_kind(PYTHON, tools),
        wrap_text(item.code or "", CODE),
    ),
    i.ImageGenerationCall: lambda item, _: (
        "image_generation",
        written({"prompt": item.revised_prompt} if item.revised_prompt else {}),
    ),
    i.Program: lambda item, _: ("program", written({"code": item.code})),
}
"""Calls, as (name, arguments), among these tools."""

RESULTS: Mapping[type[i.Item], Callable[[Any], Sequence[Piece]]] = {
    i.McpCall: _mcp_result,
    i.WebSearchCall: lambda item: [
        ("text", browser_call_of(item)[2] or item.status or "completed")
    ],
    i.CodeInterpreterCall: lambda item: _logs(item.outputs),
    i.ImageGenerationCall: lambda item: [("text", item.status or "completed")],
}
"""What came back, of calls whose item holds it."""

OUTPUTS: Mapping[type[i.Item], Callable[[Any], Sequence[Piece]]] = {
    i.FunctionCallOutput: lambda item: pieces(item.output),
    i.CustomToolCallOutput: lambda item: pieces(item.output),
    i.ComputerCallOutput: lambda item: (
        [("image", item.output.image_url)] if item.output.image_url else []
    ),
    i.LocalShellCallOutput: lambda item: pieces(item.output),
    i.ShellCallOutput: lambda item: _json(item.output),
    i.ApplyPatchCallOutput: lambda item: pieces(item.output or item.status or "completed"),
    i.ToolSearchOutput: lambda item: _json({"tools": tool_names_of(item)}),
    i.ProgramOutput: lambda item: pieces(item.result),
}
"""What came back, as an item of its own."""
