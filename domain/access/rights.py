"""The rights of an API key: the models, tools and hosts that its requests may name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import Forbidden
from antiphon.domain.history.conversation import Entry
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.tools import AnyWebSearch, McpTool, RequestTool, UnknownTool

URL_FIELDS = ("image_url", "file_url")
"""Fields of input items whose URLs the server fetches."""

READING_METHODS = ("GET", "HEAD", "OPTIONS")


METRICS_PATH = "/metrics"


def check_scopes(policy: KeyPolicy, method: str, path: str = "") -> None:
    """Raises: Forbidden if the key may not send requests with this HTTP method to this path."""
    scope = "read" if method in READING_METHODS else "write"
    if path == METRICS_PATH:
        scope = "metrics"
    if scope not in policy.scopes:
        raise Forbidden(
            "You have insufficient permissions for this operation: the API key lacks the scope "
            f"{scope!r}."
        )


def check_tools(policy: KeyPolicy, definitions: Sequence[ToolDefinition]) -> None:
    """Raises: Forbidden for a tool, or the address of one, that the key may not use."""
    if not policy.tools and not policy.hosts:
        return
    for definition in definitions:
        tool = definition.tool
        kind = _kind_of(tool)
        if not policy.allows_tool(kind):
            raise Forbidden(
                f"The API key may not use tools of the type {kind[:100]!r}. It may use: "
                f"{', '.join(policy.tools)}.",
                param=definition.path,
            )
        if isinstance(tool, McpTool) and tool.server_url:
            _check_url(policy, tool.server_url, f"{definition.path}.server_url")


def check_urls(policy: KeyPolicy, entries: Sequence[Entry]) -> None:
    """Raises: Forbidden for a URL among the request's items to which the key may not connect."""
    if not policy.hosts:
        return
    for position, entry in enumerate(entries):
        for path, url in _urls_in(msgspec.json.decode(entry.raw), f"input[{position}]"):
            _check_url(policy, url, path)


def _kind_of(tool: RequestTool) -> str:
    """Return the tool's type; a dated or preview version of web search is `web_search`."""
    if isinstance(tool, UnknownTool):
        return str(tool.raw.get("type"))
    return "web_search" if isinstance(tool, AnyWebSearch) else str(type(tool).__struct_config__.tag)


def _check_url(policy: KeyPolicy, url: str, path: str) -> None:
    if not policy.allows_url(url):
        raise Forbidden(
            "The API key may not have the server connect to this host. It may use: "
            f"{', '.join(policy.hosts)}.",
            param=path,
        )


def _urls_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each URL, wherever it is nested."""
    if isinstance(value, list):
        for position, element in enumerate(value):
            yield from _urls_in(element, f"{path}[{position}]")
    elif isinstance(value, dict):
        for name, field in value.items():
            if name in URL_FIELDS and isinstance(field, str):
                if field[:5].lower() != "data:":
                    yield f"{path}.{name}", field
            else:
                yield from _urls_in(field, f"{path}.{name}")
