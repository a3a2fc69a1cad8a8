"""Results of MCP servers that are not quite as the specification has them, made so.

The SDK refuses a result as a whole: one odd tool hides all others, and an odd block of an answer
turns a call that has run into a failed one, which models then make again. So what this server reads
is put into the specified form before the SDK looks at it, and the rest is left out. All transports
share this.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import mcp_types
import msgspec
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter, ValidationError

from antiphon.application.ports import Json
from antiphon.domain.offers.mcp import object_schema

_BLOCK: TypeAdapter[Any] = TypeAdapter(mcp_types.ContentBlock)
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


@asynccontextmanager
async def lenient(transport: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
    """Open the transport, and yield its streams; what is read has specified results."""
    async with transport as (incoming, outgoing):
        yield _Results(incoming), outgoing


class _Results:
    """A stream of a transport (`mcp.client.Transport`)."""

    def __init__(self, incoming: Any) -> None:
        self._incoming = incoming

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incoming, name)  # `aclose`, and whose context it is

    async def __aenter__(self) -> _Results:
        await self._incoming.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._incoming.__aexit__(*error)

    def __aiter__(self) -> _Results:
        return self

    async def __anext__(self) -> Any:
        return _fit(await self._incoming.__anext__())

    async def receive(self) -> Any:
        return _fit(await self._incoming.receive())


def _fit(received: Any) -> Any:
    message = received.message if isinstance(received, SessionMessage) else None
    if isinstance(message, mcp_types.JSONRPCResponse):
        message.result = specified_result(message.result)
    return received


def specified_result(result: Json) -> Json:
    """Return a list of tools, or the result of a call, in the form of the specification.

    >>> specified_result({"tools": [{"name": "f", "inputSchema": None}, "g"]})
    {'tools': [{'name': 'f', 'inputSchema': {'type': 'object', 'properties': {}}}]}
    >>> specified_result({"content": "seen", "isError": None})
    {'content': [{'type': 'text', 'text': 'seen'}]}
    """
    if "tools" in result:
        return _listing(result)
    if not result.keys().isdisjoint(("content", "structuredContent", "toolResult")):
        return _call_result(result)
    return result


def _listing(result: Json) -> Json:
    listed = result["tools"] if isinstance(result["tools"], list) else []
    fitted = {**result, "tools": [tool for tool in map(_tool, listed) if tool is not None]}
    if not isinstance(result.get("nextCursor"), str):
        fitted.pop("nextCursor", None)
    return fitted


def _tool(tool: Any) -> Json | None:
    """Return what this server reads of a tool; None if it has no name."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return None
    fitted = {"name": tool["name"], "inputSchema": object_schema(tool.get("inputSchema"))}
    for field in ("title", "description"):
        if isinstance(tool.get(field), str):
            fitted[field] = tool[field]
    if isinstance(tool.get("annotations"), dict):
        given = tool["annotations"]
        fitted["annotations"] = {
            name: value
            for name, value in given.items()
            if isinstance(value, bool if name in _HINTS else str)
        }
    return fitted


def _call_result(result: Json) -> Json:
    content = result.get("content", result.get("toolResult"))  # the latter until 2024-11-05
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    fitted = {**result, "content": [_block(block) for block in blocks]}
    fitted.pop("toolResult", None)
    fitted.pop("_meta", None)
    # A dict, until the version of 2026-07-28: of other values the text is shown.
    structured = fitted.get("structuredContent")
    if not isinstance(structured, dict):
        fitted.pop("structuredContent", None)
        if structured is not None and not blocks:
            fitted["content"] = [_text(structured)]
    if not isinstance(fitted.get("isError"), bool):
        fitted.pop("isError", None)
    return fitted


def _block(block: Any) -> Json:
    try:
        _BLOCK.validate_python(block, by_name=False)
    except ValidationError:
        return _text(block)
    fitted: Json = block
    return fitted


def _text(value: Any) -> Json:
    """Return a block with what can be read of a value: its text, or all of it as JSON."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = value["text"]
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except RecursionError:
        text = "[an answer that is nested too deeply]"
    return {"type": "text", "text": text}
