"""The rights of an API key: the models, tools and hosts that its requests may name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import Forbidden
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.tools import AnyWebSearch, McpTool, RequestTool, UnknownTool

READING_METHODS = ("GET", "HEAD", "OPTIONS")


METRICS_PATH = "/metrics"

TOOLS_OF_ROUTES: Mapping[str, tuple[str, ...]] = {
    "/v1/containers": ("code_interpreter", "shell"),
    "/v1/skills": ("code_interpreter", "shell"),
    "/v1/vector_stores": ("file_search",),
}
"""The tools whose containers, indexes and the like a route creates and shows: a key needs one of
them."""


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
    if policy.tools:
        _check_route(policy, path)


def _check_route(policy: KeyPolicy, path: str) -> None:
    kinds = TOOLS_OF_ROUTES.get("/".join(path.split("/", 3)[:3]), ())
    if kinds and not any(map(policy.allows_tool, kinds)):
        raise Forbidden(
            f"The API key may not use what belongs to tools of the type {' or '.join(kinds)}. It "
            f"may use: {', '.join(policy.tools)}."
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
            check_url(policy, tool.server_url, f"{definition.path}.server_url")


def _kind_of(tool: RequestTool) -> str:
    """Return the tool's type; a dated or preview version of web search is `web_search`."""
    if isinstance(tool, UnknownTool):
        return str(tool.raw.get("type"))
    return "web_search" if isinstance(tool, AnyWebSearch) else str(type(tool).__struct_config__.tag)


def check_url(policy: KeyPolicy, url: str, path: str) -> None:
    """Raises: Forbidden for a URL to which the key may not have the server connect."""
    if not policy.allows_url(url):
        raise Forbidden(
            "The API key may not have the server connect to this host. It may use: "
            f"{', '.join(policy.hosts)}.",
            param=path,
        )
