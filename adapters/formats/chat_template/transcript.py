"""The conversation as a chat model knows it: who said what, what was called, what came back.

Items of hosted tools are calls with their results; items that only steer the server are nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.adapters.formats.tools import description_of, input_parameters, wrapped
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError
from antiphon.domain.offers import flat_name
from antiphon.domain.tools import ToolSpec

Json = dict[str, Any]
Piece = tuple[Literal["text", "image", "refusal"], str]
"""A part of what was said; an image is its URL."""


class Said(Struct, frozen=True):
    role: str
    pieces: Sequence[Piece]


class Thought(Struct, frozen=True):
    text: str


class Called(Struct, frozen=True):
    """`arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str
    call_id: str


class Returned(Struct, frozen=True):
    name: str
    call_id: str
    pieces: Sequence[Piece]


Entry = Said | Thought | Called | Returned


def transcript(items: Sequence[i.Item]) -> Iterator[Entry]:
    """Raises: RequestError for content that no chat model here can be given."""
    names: dict[str, str] = {}  # of calls, by their ids: a result does not say whose it is
    asked: dict[str, i.McpApprovalRequest] = {}
    for item in items:
        match item:
            case i.Message():
                yield Said(item.role, pieces(item.content))
            case i.Reasoning():
                yield Thought(reasoning_text(item))
            case i.McpApprovalRequest():
                asked[str(item.id)] = item
            case i.McpApprovalResponse(approve=False) if item.approval_request_id in asked:
                yield from _declined(asked[item.approval_request_id], item)
            case _ if type(item) in CALLS:
                name, arguments = CALLS[type(item)](item)
                call_id = _call_id(item)
                names[call_id] = name
                yield Called(name, arguments, call_id)
                if type(item) in RESULTS:
                    yield Returned(name, call_id, RESULTS[type(item)](item))
            case _ if type(item) in OUTPUTS:
                call_id = _call_id(item)
                name = names.get(call_id) or str(getattr(item, "name", None) or "tool")
                yield Returned(name, call_id, OUTPUTS[type(item)](item))


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


def _declined(request: i.McpApprovalRequest, response: i.McpApprovalResponse) -> Iterator[Entry]:
    call_id = str(request.id)
    reason = f": {response.reason}" if response.reason else "."
    yield Called(request.name, request.arguments, call_id)
    yield Returned(request.name, call_id, [("text", f"The user declined this call{reason}")])


def _json(value: Any) -> list[Piece]:
    return [("text", msgspec.json.encode(value).decode())]


def _logs(outputs: Sequence[Json] | None) -> list[Piece]:
    return [("text", str(output.get("logs", ""))) for output in outputs or ()]


def _mcp_result(item: Any) -> list[Piece]:
    if item.output is not None:
        return pieces(item.output)
    return [("text", "Error: "), *_json(item.error)] if item.error else []


def _named(item: Any) -> str:
    namespace = item.namespace
    return flat_name(namespace if isinstance(namespace, str) else None, item.name)


CALLS: Mapping[type[i.Item], Callable[[Any], tuple[str, str]]] = {
    i.FunctionCall: lambda item: (_named(item), item.arguments),
    i.CustomToolCall: lambda item: (_named(item), wrapped(item.input)),
    i.McpCall: lambda item: (item.name, item.arguments),
    i.WebSearchCall: lambda item: ("web_search", written(item.action or {})),
    i.FileSearchCall: lambda item: ("file_search", written({"queries": item.queries or ()})),
    i.CodeInterpreterCall: lambda item: ("code_interpreter", written({"code": item.code or ""})),
    i.ImageGenerationCall: lambda item: (
        "image_generation",
        written({"prompt": item.revised_prompt} if item.revised_prompt else {}),
    ),
    i.ComputerCall: lambda item: (
        "computer",
        written(item.action or {"actions": list(item.actions or ())}),
    ),
    i.LocalShellCall: lambda item: ("local_shell", written(item.action)),
    i.ShellCall: lambda item: ("shell", written(item.action)),
    i.ApplyPatchCall: lambda item: ("apply_patch", written(item.operation)),
    i.ToolSearchCall: lambda item: ("tool_search", written(item.arguments)),
    i.Program: lambda item: ("program", written({"code": item.code})),
}
"""Calls, as (name, arguments)."""

RESULTS: Mapping[type[i.Item], Callable[[Any], Sequence[Piece]]] = {
    i.McpCall: _mcp_result,
    i.WebSearchCall: lambda item: [("text", item.status or "completed")],
    i.FileSearchCall: lambda item: _json(item.results or ()),
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
    i.ToolSearchOutput: lambda item: _json(item.tools),
    i.ProgramOutput: lambda item: pieces(item.result),
}
"""What came back, as an item of its own."""
