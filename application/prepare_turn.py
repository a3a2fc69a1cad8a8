"""Prepare the turn that a request asks for: its checks, its tools, its conversation.

Creating a response and counting its tokens take the same way up to here, so that a count is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.calling import Caller
from antiphon.application.continuations import Remembered
from antiphon.application.hosted import Hosted, callers_of, run_here
from antiphon.application.load_history import LoadHistory
from antiphon.application.models import Models
from antiphon.application.ports import Model, ToolServers, Turn
from antiphon.application.read_items import ReadItems
from antiphon.application.requested import turn_of
from antiphon.application.show_items import ShowItems
from antiphon.domain import conversation as c
from antiphon.domain import mcp
from antiphon.domain.decoding import decode_tool
from antiphon.domain.items import AnyItem
from antiphon.domain.offers import EARLIER, Definition, Offer, offer
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import InputTransformation
from antiphon.domain.stand_ins import NO_STAND_INS, StandIns
from antiphon.domain.tools import McpTool
from antiphon.domain.without_effect import paths_without_effect, refuse_without_effect

Salt = Callable[[str, str | None], str]
"""What the prompts of a tenant share in the engine's prefix cache, and no other tenant's do; apart
for each `cache_salt` of the client's, if it gave one."""


class Prepared(Struct, frozen=True, kw_only=True):
    """A turn that may be begun.

    `added` are the items that the request itself brought, `history` those that it continues;
    `removed` those that the model is not shown because nobody can read them; `conversation` is all
    of them, `approved` the calls in it that this request approves of. `hosted` run the calls of
    tools that this server has, by their kind. `ignored` are the paths of what has no effect.
    """

    model: Model
    offered: Offer
    history: Sequence[c.Entry]
    added: Sequence[c.Entry]
    turn: Turn
    removed: Sequence[InputTransformation] = ()
    conversation: Sequence[AnyItem] = ()
    approved: Sequence[mcp.Approved] = ()
    hosted: Mapping[str, Caller] = {}
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
        salt: Salt,
        hosted: Sequence[Hosted] = (),
        stand_ins: StandIns = NO_STAND_INS,
    ) -> None:
        self._models = models
        self._read_items = read_items
        self._load_history = load_history
        self._show_items = show_items
        self._tool_servers = tool_servers
        self._salt = salt
        self._hosted = hosted
        self._stand_ins = stand_ins

    async def __call__(
        self,
        request: CreateResponse,
        *,
        tenant: str,
        trace_headers: Mapping[str, str] | None = None,
        remembered: Remembered | None = None,
        strict: bool = False,
    ) -> Prepared:
        """Return the turn. Raises: RequestError, if `strict` also for what would have no effect;
        StoreError.
        """
        remembered = remembered or {}
        model = self._models.named(request.model) if request.model else self._models.all[0]
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
        definitions = [run_here(each, self._hosted) for each in definitions]
        offered = offer(definitions, self._stand_ins.choice(request.tool_choice))
        ignored = paths_without_effect(request, offered)
        if strict:
            refuse_without_effect(ignored, offered)
        c.check_ids((entry.item.id for entry in history), new)
        c.check_pairs(conversation)
        approved = mcp.approved(conversation)
        every = request.reasoning is not None and request.reasoning.context == "all_turns"
        shown = await self._show_items(
            conversation, tenant=tenant, model=model, added=new, all_reasoning=every
        )
        turn = turn_of(
            request,
            offered,
            model,
            items=shown.items,
            in_force=c.in_force(conversation),
            cache_salt=self._salt(tenant, request.cache_salt),
            trace_headers=trace_headers or {},
        )
        return Prepared(
            model=model,
            offered=offered,
            history=history,
            added=added,
            turn=turn,
            removed=shown.removed,
            conversation=conversation,
            approved=approved if self._tool_servers is not None else (),
            hosted=await callers_of(definitions, self._hosted, conversation, tenant=tenant),
            ignored=ignored,
        )


def _standing_in(definition: Definition, stand_ins: StandIns) -> Definition:
    """Return the definition with what stands in for its tool, if anything does."""
    tool = stand_ins.tool(definition.tool, definition.path)
    if tool is definition.tool:
        return definition
    return replace(definition, tool=tool, asked=definition.tool)


def _called_here(
    definition: Definition, conversation: Sequence[AnyItem], servers: ToolServers
) -> Definition:
    """Return the definition with what an MCP server is known to offer, if it is one."""
    if not isinstance(definition.tool, McpTool):
        return definition
    tool = servers.resolve(definition.tool, definition.path)
    if tool is None:
        return definition
    listed = mcp.listing_of(tool.server_label, conversation)
    return replace(definition, tool=tool, is_run=True, listed=listed or ())


def _definitions(
    request: CreateResponse, history: Sequence[c.Entry], added: Sequence[c.Entry]
) -> list[Definition]:
    """Return the request's tools and, later ones, those that items of the conversation bring."""
    found = [
        Definition(tool=decode_tool(raw, path), path=path)
        for position, raw in enumerate(request.tools or ())
        for path in (f"tools[{position}]",)
    ]
    for position, number, raw in c.brought_tools([*history, *added]):
        at = position - len(history)
        path = f"input[{at}].tools[{number}]" if at >= 0 else EARLIER
        found.append(Definition(tool=decode_tool(raw, path), path=path, later=True))
    return found
