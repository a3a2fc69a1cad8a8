"""The tools of a chat request, and its choice of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from antiphon.domain.json import Json
from antiphon.domain.kinds.custom import CustomTool
from antiphon.domain.kinds.function import FunctionTool
from antiphon.domain.requests.decoding import check_values, read
from antiphon.domain.tools import WebSearch
from antiphon.entrypoints.http.doors.chat.completion import API
from antiphon.entrypoints.http.doors.chat.request import (
    ChatCustomTool,
    ChatFunction,
    ChatFunctionTool,
    ChatRequest,
    SearchOptions,
)
from antiphon.entrypoints.http.doors.places import SentPlace
from antiphon.entrypoints.http.doors.server_tools import check_server_tool

_NESTED = ("name", "description", "parameters", "strict", "format")
_FUNCTION = {f".{name}": f".function.{name}" for name in _NESTED}
_CUSTOM = {f".{name}": f".custom.{name}" for name in _NESTED}


class _Head(Struct, frozen=True):
    type: str | None = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_function = msgspec.json.Decoder(ChatFunctionTool).decode
_decode_custom = msgspec.json.Decoder(ChatCustomTool).decode
_encode = msgspec.json.Encoder().encode


def read_tools(request: ChatRequest) -> tuple[list[Raw], list[SentPlace]]:
    """Return the request's tools, and the place of each. Raises: RequestError."""
    tools: list[Raw] = []
    places: list[SentPlace] = []
    for index, raw in enumerate(request.tools or ()):
        path = f"tools[{index}]"
        check_values(raw, path)
        tool, place = _read_tool(raw, path)
        tools.append(tool)
        places.append(place)
    for index, function in enumerate(request.functions or ()):
        tools.append(_tool_of(function))
        places.append(SentPlace(f"functions[{index}]"))
    if request.web_search_options is not None:
        tools.append(_search_of(request.web_search_options))
        places.append(SentPlace("web_search_options"))
    return tools, places


def _read_tool(raw: Raw, path: str) -> tuple[Raw, SentPlace]:
    kind = read(_decode_head, raw, path).type
    if kind == "function":
        return _tool_of(read(_decode_function, raw, path).function), SentPlace(path, _FUNCTION)
    if kind == "custom":
        custom = read(_decode_custom, raw, path).custom
        tool = CustomTool(
            name=custom.name,
            description=custom.description,
            format=_flat_format(custom.format) if custom.format else {"type": "text"},
        )
        return Raw(_encode(tool)), SentPlace(path, _CUSTOM)
    check_server_tool(raw, kind, path, api=API)
    return raw, SentPlace(path)


def _tool_of(function: ChatFunction) -> Raw:
    tool = FunctionTool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=function.strict is True,  # unlike in Responses, it is not if nothing says so
    )
    return Raw(_encode(tool))


def _search_of(options: SearchOptions) -> Raw:
    location = options.user_location
    search = WebSearch(
        search_context_size=options.search_context_size,
        user_location=None if location is None else {**location.approximate, "type": location.type},
    )
    return Raw(_encode(search))


def _flat_format(given: Json) -> Json:
    """Return the format of a custom tool, whose grammar is an object of its own here."""
    grammar = given.get("grammar")
    return {"type": given.get("type"), **grammar} if isinstance(grammar, dict) else given


def read_choice(request: ChatRequest) -> Any:
    """Return the choice of tools as Responses has it."""
    if request.tool_choice is not None:
        return _flat_choice(request.tool_choice)
    legacy = request.function_call
    return {"type": "function", **legacy} if isinstance(legacy, dict) else legacy


def _flat_choice(choice: str | Json) -> str | Json:
    """Return a choice without the object that has its details.

    >>> _flat_choice({"type": "function", "function": {"name": "add"}})
    {'type': 'function', 'name': 'add'}
    """
    if isinstance(choice, str):
        return choice
    kind = choice.get("type")
    details = choice.get(kind) if isinstance(kind, str) else None
    if not isinstance(details, dict):
        return choice
    flat = {"type": kind, **details}
    tools: Sequence[Any] | None = details.get("tools")
    if kind == "allowed_tools" and isinstance(tools, list):
        flat["tools"] = [_flat_choice(tool) if isinstance(tool, dict) else tool for tool in tools]
    return flat
