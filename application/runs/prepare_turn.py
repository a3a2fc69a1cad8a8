"""Prepare the turn that a request asks for: its checks, its tools, its conversation.

Creating a response and counting its tokens take the same way up to here, so that a count is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.from_request import turn_of
from antiphon.application.input.history import LoadHistory, Remembered
from antiphon.application.input.items import ReadItems
from antiphon.application.input.show_items import ShowItems
from antiphon.application.model.models import Models
from antiphon.application.ports import MakeSalt, Model, ToolServers, Turn
from antiphon.application.tools.calls import ToolCaller
from antiphon.application.tools.hosted import ToolProvider, find_callers, mark_hosted
from antiphon.domain import conversation as c
from antiphon.domain import mcp
from antiphon.domain.decoding import decode_tool
from antiphon.domain.ignored import ignored_paths, refuse_ignored
from antiphon.domain.items import AnyItem
from antiphon.domain.offers import PREVIOUS_RESPONSE_PATH, Offer, ToolDefinition, make_offer
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import InputTransformation
from antiphon.domain.tool_substitutions import NO_SUBSTITUTIONS, ToolSubstitutions
from antiphon.domain.tools import McpTool


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """A turn that may be begun.

    `added` are the items that the request itself brought, `history` those that it continues;
    `removed` those that the model is not shown because nobody can read them; `conversation` is all
    of them, `approved_calls` the calls in it that this request approves. `hosted` run the calls of
    tools that this server has, by their kind. `ignored` are the paths of what has no effect.
    """

    model: Model
    offered: Offer
    history: Sequence[c.Entry]
    added: Sequence[c.Entry]
    turn: Turn
    removed: Sequence[InputTransformation] = ()
    conversation: Sequence[AnyItem] = ()
    approved_calls: Sequence[mcp.ApprovedCall] = ()
    hosted: Mapping[str, ToolCaller] = {}
    ignored: Sequence[str] = ()


class PrepareTurn:
    """What can be wrong with a request or its history is raised here, with the field's name."""

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
        self._hosted = hosted
        self._stand_ins = tool_substitutions

    async def __call__(
        self,
        request: CreateResponse,
        *,
        tenant: str,
        trace_headers: Mapping[str, str] | None = None,
        remembered: Remembered | None = None,
        strict: bool = False,
    ) -> PreparedTurn:
        """Return the turn. Raises: RequestError, if `strict` also for what would have no effect;
        StoreError.
        """
        remembered = remembered or {}
        model = self._models.get(request.model) if request.model else self._models.all[0]
        added = await self._read_items(request.input, tenant=tenant, remembered=remembered)
        history = await self._load_history(request, tenant=tenant, remembered=remembered)
        new = [entry.item for entry in added]
        conversation = [*(entry.item for entry in history), *new]
        definitions = [
            _standing_in(each, self._stand_ins) for each in _definitions(request, history, added)
        ]
        if self._tool_servers is not None:
            definitions = [
                _called_here(each, conversation, self._tool_servers) for each in definitions
            ]
        definitions = [mark_hosted(each, self._hosted) for each in definitions]
        offered = make_offer(definitions, self._stand_ins.choice(request.tool_choice))
        ignored = ignored_paths(request, offered)
        if strict:
            refuse_ignored(ignored, offered)
        c.check_ids((entry.item.id for entry in history), new)
        c.check_call_output_pairs(conversation)
        approved_calls = mcp.approved_calls(conversation)
        every = request.reasoning is not None and request.reasoning.context == "all_turns"
        shown = await self._show_items(
            conversation, tenant=tenant, model=model, added=new, all_reasoning=every
        )
        turn = turn_of(
            request,
            offered,
            model,
            items=shown.items,
            active_configuration=c.active_configuration(conversation),
            cache_salt=self._salt(tenant, request.cache_salt),
            trace_headers=trace_headers or {},
        )
        return PreparedTurn(
            model=model,
            offered=offered,
            history=history,
            added=added,
            turn=turn,
            removed=shown.removed,
            conversation=conversation,
            approved_calls=approved_calls if self._tool_servers is not None else (),
            hosted=await find_callers(definitions, self._hosted, conversation, tenant=tenant),
            ignored=ignored,
        )


def _standing_in(
    definition: ToolDefinition, tool_substitutions: ToolSubstitutions
) -> ToolDefinition:
    """Return the definition with what stands in for its tool, if anything does."""
    tool = tool_substitutions.tool(definition.tool, definition.path)
    if tool is definition.tool:
        return definition
    return replace(definition, tool=tool, original=definition.tool)


def _called_here(
    definition: ToolDefinition, conversation: Sequence[AnyItem], servers: ToolServers
) -> ToolDefinition:
    """Return the definition with what an MCP server is known to offer, if it is one."""
    if not isinstance(definition.tool, McpTool):
        return definition
    tool = servers.resolve(definition.tool, definition.path)
    if tool is None:
        return definition
    listed = mcp.listed_tools(tool.server_label, conversation)
    return replace(definition, tool=tool, is_server_run=True, listed_tools=listed or ())


def _definitions(
    request: CreateResponse, history: Sequence[c.Entry], added: Sequence[c.Entry]
) -> list[ToolDefinition]:
    """Return the request's tools and, later ones, those that items of the conversation bring."""
    found = [
        ToolDefinition(tool=decode_tool(raw, path), path=path)
        for position, raw in enumerate(request.tools or ())
        for path in (f"tools[{position}]",)
    ]
    for position, number, raw in c.tools_in_items([*history, *added]):
        at = position - len(history)
        path = f"input[{at}].tools[{number}]" if at >= 0 else PREVIOUS_RESPONSE_PATH
        found.append(ToolDefinition(tool=decode_tool(raw, path), path=path, from_item=True))
    return found
