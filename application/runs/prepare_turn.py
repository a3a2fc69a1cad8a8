"""Prepare a request's first turn: check the request, find its tools, load its conversation.

Creating a response and counting its tokens both start here, so that the count is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.clear_tool_uses import clear_turn
from antiphon.application.input.from_request import turn_of
from antiphon.application.input.history import LoadHistory
from antiphon.application.input.items import ReadItems
from antiphon.application.input.show_items import ShowItems, ShownItems
from antiphon.application.input.submission import Submission
from antiphon.application.model.guards.ask_guards import ResponseGuards
from antiphon.application.model.guards.check_input import check_input, check_turn
from antiphon.application.model.models import Models
from antiphon.application.ports import MakeSalt, Model, ToolServers, Turn
from antiphon.application.support.threads import ITEM_BYTES, MIN_THREAD_BYTES, compute_in_thread
from antiphon.application.tools.calls import ToolCaller
from antiphon.application.tools.hosted import ToolProvider, find_callers
from antiphon.application.tools.offers import NO_TOOLS, KnownTools, OfferTools, json_bytes_of
from antiphon.domain.history import conversation as c
from antiphon.domain.history.agents import has_agents, own_items
from antiphon.domain.history.tool_uses import ClearedToolUses
from antiphon.domain.items import AnyItem, McpApprovalResponse
from antiphon.domain.kinds.multi_agent import ROOT
from antiphon.domain.offers import mcp
from antiphon.domain.offers.offer import Offer, with_notes
from antiphon.domain.offers.tool_substitutions import NO_SUBSTITUTIONS, ToolSubstitutions
from antiphon.domain.requests.ignored import ignored_paths, refuse_ignored
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import InputTransformation

TOOL_BYTE_COST = 8
"""A tool's JSON is decoded, checked and encoded, and a grammar in it is parsed."""


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """A turn that can start.

    `input` holds the request's own items, `history` the items before them, and `conversation` those
    of both that the agent knows: all, unless sub-agents have some;
    `removed` names the items that the model is not shown, because this server cannot read them;
    `cleared` says which tool results it is not shown, to make room.
    `answered_calls` are the MCP calls that the client approved or denied. `tool_callers` run the
    calls of
    this server's own tools, by kind. `ignored` are the paths of fields without effect.
    """

    model: Model
    offer: Offer
    history: Sequence[c.Entry]
    input: Sequence[c.Entry]
    turn: Turn
    removed: Sequence[InputTransformation] = ()
    cleared: ClearedToolUses | None = None
    conversation: Sequence[AnyItem] = ()
    answered_calls: Sequence[mcp.AnsweredCall] = ()
    tool_callers: Mapping[str, ToolCaller] = {}
    ignored: Sequence[str] = ()

    @property
    def approved_calls(self) -> Sequence[mcp.AnsweredCall]:
        """The calls to run before the model's turn."""
        return [call for call in self.answered_calls if call.is_approved]

    @property
    def own_answers(self) -> Sequence[mcp.AnsweredCall]:
        """Those that the request itself answers, and not a response before it."""
        own = {
            entry.item.approval_request_id
            for entry in self.input
            if isinstance(entry.item, McpApprovalResponse)
        }
        return [call for call in self.answered_calls if call.request.id in own]


class _CheckedRequest(Struct, frozen=True, kw_only=True):
    entries: Sequence[c.Entry]
    items: Sequence[AnyItem]
    own: Sequence[AnyItem]
    offer: Offer
    ignored: Sequence[str]
    answered_calls: Sequence[mcp.AnsweredCall] = ()
    active_configuration: c.ActiveConfiguration = c.ActiveConfiguration()


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
        self._offer_tools = OfferTools(tool_servers, hosted, tool_substitutions)

    async def __call__(self, submission: Submission) -> PreparedTurn:
        """Return the turn. Raises: RequestError; Forbidden for what the caller may not use;
        StoreError.
        """
        request, tenant = submission.request, submission.caller.tenant
        remembered = submission.remembered or {}
        models, policy = self._models, submission.caller.policy
        if policy.models:
            models = models.allowed_by(policy)
        model = models.get(request.model) if request.model else models.default
        if isinstance(request.input, str):  # a user message, to which no rule applies
            entries = c.entries(request.input)
        else:
            entries = await self._read_items(request.input, tenant=tenant, remembered=remembered)
        history: Sequence[c.Entry] = ()
        if submission.history is not None:  # of a session: the request was compared with it
            history = submission.history
        elif request.previous_response_id is not None or request.conversation is not None:
            history = await self._load_history(request, tenant=tenant, remembered=remembered)
        known_tools = self._offer_tools.recall(request, tenant) if request.tools else None
        size = ITEM_BYTES * (len(history) + len(entries))
        if known_tools is None and request.tools:
            size += _size_of_tools(request)
        check = partial(self._check, submission, history, entries, known_tools)
        checked = check() if size < MIN_THREAD_BYTES else await compute_in_thread(check)
        items, conversation, offer = checked.items, checked.own, checked.offer
        reasoning = request.reasoning
        shown = (
            ShownItems(items=conversation)
            if c.only_texts(conversation)
            else await self._show_items(
                conversation,
                tenant=tenant,
                policy=policy,
                model=model,
                added=items,
                all_reasoning=reasoning is not None and reasoning.context == "all_turns",
            )
        )
        callers: Mapping[str, ToolCaller] = {}
        if offer.definitions:
            with_media = [shown.loaded.get(id(item), item) for item in conversation]
            callers = await find_callers(
                offer.definitions, self._tool_providers, with_media, tenant=tenant
            )
            if notes := {kind: caller.note for kind, caller in callers.items() if caller.note}:
                offer = with_notes(offer, notes)
        turn = turn_of(
            request,
            offer,
            model,
            items=shown.items,
            active_configuration=checked.active_configuration,
            tenant=tenant,
            cache_salt=self._salt(tenant, request.cache_salt),
            trace_headers=submission.context.trace_headers,
        )
        cleared: ClearedToolUses | None = None
        if request.context_management and (edit := request.tool_clearing) is not None:
            turn, cleared = await clear_turn(edit, turn, model)
        if submission.strict:
            refuse_ignored(model.ignored_fields(turn), offer)
        return PreparedTurn(
            model=model,
            offer=offer,
            history=history,
            input=checked.entries,
            turn=turn,
            removed=shown.removed,
            cleared=cleared,
            conversation=conversation,
            answered_calls=checked.answered_calls if self._tool_servers is not None else (),
            tool_callers=callers,
            ignored=checked.ignored,
        )

    def _check(
        self,
        submission: Submission,
        history: Sequence[c.Entry],
        entries: Sequence[c.Entry],
        known_tools: KnownTools | None,
    ) -> _CheckedRequest:
        """Check everything that needs no store and no network. Raises: RequestError."""
        request, caller = submission.request, submission.caller
        earlier_items = [entry.item for entry in history] if history else []
        entries = c.settle_ids([item.id for item in earlier_items], entries)
        items = [entry.item for entry in entries]
        conversation = [*earlier_items, *items]
        only_messages = c.only_messages(conversation)
        offer = NO_TOOLS
        offers_tools = request.tools or request.tool_choice is not None or request.has_agents
        if offers_tools or not only_messages:
            offer = self._offer_tools(
                request,
                history,
                entries,
                tenant=caller.tenant,
                policy=caller.policy,
                known=known_tools,
            )
        ignored = (*ignored_paths(request, offer), *submission.ignored)
        if submission.is_moderated:
            ignored = tuple([path for path in ignored if path != "moderation"])
        if submission.strict:
            refuse_ignored(ignored, offer)
        if has_agents(conversation) or submission.agent is not None:
            own = own_items(conversation, submission.agent_name or ROOT)
        else:
            own = conversation
        checked = _CheckedRequest(
            entries=entries, items=items, own=own, offer=offer, ignored=ignored
        )
        if only_messages:
            return checked
        c.check_call_output_pairs(conversation)
        return replace(
            checked,
            answered_calls=mcp.answered_calls(own),
            active_configuration=c.active_configuration(own),
        )


async def prepare_guarded(
    prepare_turn: PrepareTurn, submission: Submission, guards: ResponseGuards | None
) -> tuple[Submission, PreparedTurn]:
    """Return the submission and its turn as guards let them pass, or with their verdict.

    Raises: as `prepare_turn`; GuardFailed.
    """
    checked = await check_input(submission, guards)
    prepared = await prepare_turn(checked.submission)
    submission, turn = await check_turn(checked, prepared.turn, guards)
    if turn is not prepared.turn:
        prepared = replace(prepared, turn=turn)
    return submission, prepared


def _size_of_tools(request: CreateResponse) -> int:
    """Return how much work it is to offer the request's tools, in bytes."""
    return TOOL_BYTE_COST * json_bytes_of(request) + ITEM_BYTES * len(request.tools or ())
