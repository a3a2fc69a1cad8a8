"""Make the offer of a request's tools.

Agents send the same tools with every request, often dozens. Reading, checking and offering one
takes some 25 microseconds. So an offer is remembered, if it depends on the request's tools alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import ToolServers
from antiphon.application.support.lru_cache import LruCache, digest_of
from antiphon.application.tools.hosted import ToolProvider, mark_hosted
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.access.rights import check_tools
from antiphon.domain.errors import RequestError
from antiphon.domain.history import conversation as c
from antiphon.domain.offers import mcp
from antiphon.domain.offers.offer import (
    PREVIOUS_RESPONSE_PATH,
    Offer,
    ToolDefinition,
    callers_in,
    can_be_called,
    make_offer,
)
from antiphon.domain.offers.tool_substitutions import (
    LABELS,
    NO_SUBSTITUTIONS,
    ToolSubstitutions,
)
from antiphon.domain.requests.decoding import decode_tool
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.tools import MULTI_AGENT, TOOL_TYPES, McpTool, MultiAgent, UnknownTool

CACHE_BYTES = 32 << 20
MAX_CACHED_JSON_BYTES = 1 << 20
"""The digest of more JSON than this would take the event loop more than some 1 ms."""
BYTES_PER_JSON_BYTE = 8
"""An offer's size in memory, for each byte of its tools' JSON."""

MAX_LISTED = 50
"""How many types or labels an error lists."""

NO_TOOLS = make_offer([], None)

AGENT_TOOLS = ToolDefinition(
    tool=MultiAgent(), path=MULTI_AGENT, from_item=True, is_server_run=True
)
"""The tools that the field `multi_agent` offers; the Response does not list it among its tools."""


class KnownTools(Struct, frozen=True):
    """Tools that a tenant has sent before: as the request defines them, and their offer."""

    requested: Sequence[ToolDefinition]
    offer: Offer


class OfferTools:
    """Makes offers, and remembers them by tenant: how long one takes would tell others of it."""

    def __init__(
        self,
        servers: ToolServers | None = None,
        providers: Sequence[ToolProvider] = (),
        substitutions: ToolSubstitutions = NO_SUBSTITUTIONS,
    ) -> None:
        self._servers = servers
        self._providers = providers
        self._substitutions = substitutions
        self._known: LruCache[KnownTools] = LruCache(CACHE_BYTES)

    def recall(self, request: CreateResponse, tenant: str) -> KnownTools | None:
        """Return what is remembered of the request's tools."""
        if not request.tools or (key := _key_of(request, tenant)) is None:
            return None
        return self._known.get(key)

    def __call__(
        self,
        request: CreateResponse,
        history: Sequence[c.Entry],
        entries: Sequence[c.Entry],
        *,
        tenant: str,
        policy: KeyPolicy,
        known: KnownTools | None = None,
    ) -> Offer:
        """Return the offer of the request's tools and those that items define.

        Raises: RequestError; Forbidden for what the policy forbids.
        """
        requested = _requested_tools(request) if known is None else known.requested
        from_items = _tools_in_items(history, entries)
        if request.has_agents:
            from_items.append(AGENT_TOOLS)
        check_tools(policy, [*requested, *from_items])
        if known is not None and not from_items:
            return known.offer
        if not requested and not from_items and request.tool_choice is None:
            return NO_TOOLS
        definitions = self._resolve([*requested, *from_items], [*history, *entries])
        self._check_known(definitions)
        offer = make_offer(definitions, self._substitutions.choice(request.tool_choice))
        has_mcp = any(isinstance(each.tool, McpTool) for each in definitions)
        if not from_items and not has_mcp:  # they depend on what the conversation lists
            self._remember(request, tenant, KnownTools(requested, offer))
        return offer

    def _resolve(
        self, definitions: Sequence[ToolDefinition], conversation: Sequence[c.Entry]
    ) -> list[ToolDefinition]:
        """Return the tools as this server can provide them."""
        resolved = [_substitute(definition, self._substitutions) for definition in definitions]
        resolved = mark_hosted(resolved, self._providers)
        if self._servers is None:
            return resolved
        callers = callers_in(resolved)
        return [
            _resolve_mcp(definition, conversation, self._servers)
            if can_be_called(definition, callers)
            else definition
            for definition in resolved
        ]

    def _check_known(self, definitions: Sequence[ToolDefinition]) -> None:
        """Raises: RequestError for a type or a label that nobody knows: it can only be a mistake
        (docs/decisions/0018)."""
        for definition in definitions:
            tool, path = definition.tool, definition.path
            if path == PREVIOUS_RESPONSE_PATH or definition.original is not None:
                continue
            if isinstance(tool, UnknownTool):
                raise _unknown(tool.raw.get("type"), f"{path}.type", "types", sorted(TOOL_TYPES))
            if isinstance(tool, McpTool) and not definition.is_server_run:
                servers = self._servers.labels if self._servers is not None else ()
                is_elsewhere = tool.server_url or tool.connector_id or tool.tunnel_id
                if not is_elsewhere and tool.server_label not in {*servers, *LABELS}:
                    labels = sorted({*servers, *self._substitutions.labels})
                    raise _unknown(tool.server_label, f"{path}.server_label", "labels", labels)

    def _remember(self, request: CreateResponse, tenant: str, known: KnownTools) -> None:
        if request.tools and (key := _key_of(request, tenant)) is not None:
            self._known.put(key, known, BYTES_PER_JSON_BYTE * json_bytes_of(request))


def _unknown(value: object, path: str, what: str, known: Sequence[str]) -> RequestError:
    there_are = ", ".join(map(repr, known[:MAX_LISTED])) if known else "none"
    if len(known) > MAX_LISTED:
        there_are += f" and {len(known) - MAX_LISTED} more"
    return RequestError(
        f"Invalid value: {str(value)[:64]!r}. The {what} that this server knows: {there_are}.",
        param=path,
        code="invalid_value",
    )


def json_bytes_of(request: CreateResponse) -> int:
    """Return the bytes of the JSON of the request's tools."""
    return sum(len(memoryview(raw)) for raw in request.tools or ())


def _key_of(request: CreateResponse, tenant: str) -> bytes | None:
    if json_bytes_of(request) > MAX_CACHED_JSON_BYTES:
        return None
    choice = msgspec.json.encode(request.tool_choice)
    return digest_of(tenant.encode(), choice, *map(bytes, request.tools or ()))


def _requested_tools(request: CreateResponse) -> list[ToolDefinition]:
    definitions = [
        ToolDefinition(tool=decode_tool(raw, path), path=path)
        for position, raw in enumerate(request.tools or ())
        for path in (f"tools[{position}]",)
    ]
    for each in definitions:
        if isinstance(each.tool, MultiAgent):
            raise RequestError(
                "Sub-agents are no tool: the field 'multi_agent' of the request turns them on.",
                param=f"{each.path}.type",
                code="invalid_value",
            )
    return definitions


def _tools_in_items(history: Sequence[c.Entry], entries: Sequence[c.Entry]) -> list[ToolDefinition]:
    definitions: list[ToolDefinition] = []
    for position, number, raw in c.tools_in_items([*history, *entries]):
        index = position - len(history)
        path = f"input[{index}].tools[{number}]" if index >= 0 else PREVIOUS_RESPONSE_PATH
        definitions.append(ToolDefinition(tool=decode_tool(raw, path), path=path, from_item=True))
    return definitions


def _substitute(definition: ToolDefinition, substitutions: ToolSubstitutions) -> ToolDefinition:
    """Return the definition with its tool replaced by its substitute, if it has one."""
    tool = substitutions.tool(definition.tool, definition.path)
    if tool is definition.tool:
        return definition
    return replace(definition, tool=tool, original=definition.tool)


def _resolve_mcp(
    definition: ToolDefinition, conversation: Sequence[c.Entry], servers: ToolServers
) -> ToolDefinition:
    """Return an MCP server's definition with the tools that the conversation lists for it."""
    if not isinstance(definition.tool, McpTool):
        return definition
    tool = servers.resolve(definition.tool, definition.path)
    if tool is None:
        return definition
    items = [entry.item for entry in conversation]
    listing = mcp.last_listing(tool.server_label, items) or mcp.NO_LISTING
    return replace(definition, tool=tool, is_server_run=True, listing=listing)
