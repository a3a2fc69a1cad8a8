"""Prepare a request's first turn: check the request, find its tools, load its conversation.

Creating a response and counting its tokens both start here, so that the count is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.from_request import turn_of
from antiphon.application.input.history import LoadHistory, Remembered
from antiphon.application.input.items import ReadItems
from antiphon.application.input.show_items import ShowItems
from antiphon.application.model.models import Models
from antiphon.application.ports import MakeSalt, Model, ToolServers, Turn
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.threads import (
    ITEM_BYTES,
    MAX_THREADS,
    MIN_THREAD_BYTES,
    run_in_thread,
)
from antiphon.application.tools.calls import ToolCaller
from antiphon.application.tools.hosted import ToolProvider, find_callers, mark_hosted
from antiphon.domain import conversation as c
from antiphon.domain import mcp
from antiphon.domain.decoding import decode_tool
from antiphon.domain.ignored import ignored_paths, refuse_ignored
from antiphon.domain.items import AnyItem
from antiphon.domain.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.offers import PREVIOUS_RESPONSE_PATH, Offer, ToolDefinition, make_offer
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import InputTransformation
from antiphon.domain.rights import check_tools, check_urls
from antiphon.domain.tool_substitutions import NO_SUBSTITUTIONS, ToolSubstitutions
from antiphon.domain.tools import McpTool

TOOL_BYTE_COST = 8
"""A tool's JSON is decoded, checked and encoded, and a grammar in it is parsed."""


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """A turn that can start.

    `input` holds the request's own items, `history` the items before them, and `conversation` both;
    `removed` names the items that the model is not shown, because this server cannot read them.
    `approved_calls` are the MCP calls that the request approves. `tool_callers` run the calls of
    this server's own tools, by kind. `ignored` are the paths of fields without effect.
    """

    model: Model
    offer: Offer
    history: Sequence[c.Entry]
    input: Sequence[c.Entry]
    turn: Turn
    removed: Sequence[InputTransformation] = ()
    conversation: Sequence[AnyItem] = ()
    approved_calls: Sequence[mcp.ApprovedCall] = ()
    tool_callers: Mapping[str, ToolCaller] = {}
    ignored: Sequence[str] = ()


class _CheckedRequest(Struct, frozen=True, kw_only=True):
    items: Sequence[AnyItem]
    conversation: Sequence[AnyItem]
    offer: Offer
    ignored: Sequence[str]
    approved_calls: Sequence[mcp.ApprovedCall]


class PrepareTurn:
    """Checks a request and its history, and makes its first turn; errors name the field."""

    def __init__(
        self,
        models: Models,
        read_items: ReadItems,
        load_history: LoadHistory,
        show_items: ShowItems,
        tool_servers: ToolServers | None = None,
        *,
        salt: MakeSalt,
        hosted: Sequence[ToolProvider] = (),
        tool_substitutions: ToolSubstitutions = NO_SUBSTITUTIONS,
    ) -> None:
        self._models = models
        self._read_items = read_items
        self._load_history = load_history
        self._show_items = show_items
        self._tool_servers = tool_servers
        self._salt = salt
        self._tool_providers = hosted
        self._tool_substitutions = tool_substitutions
        self._checks = FairQueue(MAX_THREADS)

    async def __call__(
        self,
        request: CreateResponse,
        *,
        tenant: str,
        trace_headers: Mapping[str, str] | None = None,
        remembered: Remembered | None = None,
        strict: bool = False,
        policy: KeyPolicy = FULL_ACCESS,
    ) -> PreparedTurn:
        """Return the turn. Raises: RequestError, if `strict` also for what would have no effect;
        Forbidden for what the `policy` forbids; StoreError.
        """
        remembered = remembered or {}
        models = self._models.allowed_by(policy)
        model = models.get(request.model) if request.model else models.default
        entries = await self._read_items(request.input, tenant=tenant, remembered=remembered)
        history = await self._load_history(request, tenant=tenant, remembered=remembered)
        work = partial(self._check, request, history, entries, strict=strict, policy=policy)
        size = _size_of(request, history, entries)
        async with self._checks.slot(tenant) if size > MIN_THREAD_BYTES else nullcontext():
            checked = await run_in_thread(size, work)
        items, conversation, offer = checked.items, checked.conversation, checked.offer
        reasoning = request.reasoning
        shown = await self._show_items(
            conversation,
            tenant=tenant,
            model=model,
            added=items,
            all_reasoning=reasoning is not None and reasoning.context == "all_turns",
        )
        turn = turn_of(
            request,
            offer,
            model,
            items=shown.items,
            active_configuration=c.active_configuration(conversation),
            cache_salt=self._salt(tenant, request.cache_salt),
            trace_headers=trace_headers or {},
        )
        if strict:
            refuse_ignored(model.ignored_fields(turn), offer)
        return PreparedTurn(
            model=model,
            offer=offer,
            history=history,
            input=entries,
            turn=turn,
            removed=shown.removed,
            conversation=conversation,
            approved_calls=checked.approved_calls if self._tool_servers is not None else (),
            tool_callers=await find_callers(
                offer.definitions, self._tool_providers, conversation, tenant=tenant
            ),
            ignored=checked.ignored,
        )

    def _check(
        self,
        request: CreateResponse,
        history: Sequence[c.Entry],
        entries: Sequence[c.Entry],
        *,
        strict: bool,
        policy: KeyPolicy,
    ) -> _CheckedRequest:
        """Check everything that needs no store and no network. Raises: RequestError."""
        check_urls(policy, entries)
        check_tools(policy, _tools_of(request, history, entries))
        items = [entry.item for entry in entries]
        conversation = [*(entry.item for entry in history), *items]
        definitions = self._definitions(request, history, entries, conversation)
        offer = make_offer(definitions, self._tool_substitutions.choice(request.tool_choice))
        ignored = ignored_paths(request, offer)
        if strict:
            refuse_ignored(ignored, offer)
        c.check_ids((entry.item.id for entry in history), items)
        c.check_call_output_pairs(conversation)
        return _CheckedRequest(
            items=items,
            conversation=conversation,
            offer=offer,
            ignored=ignored,
            approved_calls=mcp.approved_calls(conversation),
        )

    def _definitions(
        self,
        request: CreateResponse,
        history: Sequence[c.Entry],
        entries: Sequence[c.Entry],
        conversation: Sequence[AnyItem],
    ) -> list[ToolDefinition]:
        """Return the tools as this server can provide them."""
        definitions = [
            _substitute(definition, self._tool_substitutions)
            for definition in _tools_of(request, history, entries)
        ]
        if self._tool_servers is not None:
            definitions = [
                _resolve_mcp(definition, conversation, self._tool_servers)
                for definition in definitions
            ]
        return [mark_hosted(definition, self._tool_providers) for definition in definitions]


def _size_of(
    request: CreateResponse, history: Sequence[c.Entry], entries: Sequence[c.Entry]
) -> int:
    """Return how much work it is to check the request, in bytes."""
    tools = request.tools or ()
    count = len(tools) + len(history) + len(entries)
    return TOOL_BYTE_COST * sum(len(memoryview(raw)) for raw in tools) + ITEM_BYTES * count


def _substitute(
    definition: ToolDefinition, tool_substitutions: ToolSubstitutions
) -> ToolDefinition:
    """Return the definition with its tool replaced by its substitute, if it has one."""
    tool = tool_substitutions.tool(definition.tool, definition.path)
    if tool is definition.tool:
        return definition
    return replace(definition, tool=tool, original=definition.tool)


def _resolve_mcp(
    definition: ToolDefinition, conversation: Sequence[AnyItem], servers: ToolServers
) -> ToolDefinition:
    """Return an MCP server's definition with the tools that the conversation lists for it."""
    if not isinstance(definition.tool, McpTool):
        return definition
    tool = servers.resolve(definition.tool, definition.path)
    if tool is None:
        return definition
    listed_tools = mcp.listed_tools(tool.server_label, conversation)
    return replace(definition, tool=tool, is_server_run=True, listed_tools=listed_tools or ())


def _tools_of(
    request: CreateResponse, history: Sequence[c.Entry], entries: Sequence[c.Entry]
) -> list[ToolDefinition]:
    """Return the tools of the request, then those of the conversation's items."""
    definitions = [
        ToolDefinition(tool=decode_tool(raw, path), path=path)
        for position, raw in enumerate(request.tools or ())
        for path in (f"tools[{position}]",)
    ]
    for position, number, raw in c.tools_in_items([*history, *entries]):
        index = position - len(history)
        path = f"input[{index}].tools[{number}]" if index >= 0 else PREVIOUS_RESPONSE_PATH
        definitions.append(ToolDefinition(tool=decode_tool(raw, path), path=path, from_item=True))
    return definitions
