"""Create a response: check the request, load its conversation, admit it in the engine, save it,
start the run.

Whatever can be answered with a status code is raised here, before anything is written to the
client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.models import Models
from antiphon.application.ports import (
    Batches,
    Clock,
    EventLog,
    NewId,
    ResponseStore,
    StoredItem,
    StoredResponse,
)
from antiphon.application.requested import response_of, turn_of, without_effect
from antiphon.application.run_response import Run, RunResponse
from antiphon.application.runs import Runs
from antiphon.domain import conversation as c
from antiphon.domain import items as i
from antiphon.domain.checks import check_request
from antiphon.domain.content import ReasoningText
from antiphon.domain.decoding import decode_item, decode_tool
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.offers import Offer, offer
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import Response
from antiphon.domain.sequencer import Sequencer

logger = logging.getLogger("antiphon.requests")

Seal = Callable[[str, str], str]
"""(tenant, text) -> an opaque, authenticated string."""

Unseal = Callable[[str, str], str | None]
"""(tenant, sealed) -> the text, or None if it was not sealed by us for this tenant."""


class Created(Struct, frozen=True, kw_only=True):
    """A response that runs: its events, and how to leave it."""

    id: str
    background: bool
    events: Batches
    ignored: Sequence[str]
    task: asyncio.Task[None]

    async def leave(self) -> None:
        """Stop reading; a foreground response ends with its reader (api_surface 6.1)."""
        await self.events.aclose()
        if not self.background:
            self.task.cancel()


class CreateResponseService:
    """`POST /v1/responses`, streamed or not: both read the log of the same run."""

    def __init__(
        self,
        models: Models,
        store: ResponseStore,
        log: EventLog,
        runs: Runs,
        run_response: RunResponse,
        *,
        new_id: NewId,
        now: Clock,
        seal: Seal,
        unseal: Unseal,
    ) -> None:
        self._models = models
        self._store = store
        self._log = log
        self._runs = runs
        self._run_response = run_response
        self._new_id = new_id
        self._now = now
        self._seal = seal
        self._unseal = unseal

    async def __call__(
        self,
        request: CreateResponse,
        *,
        tenant: str,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Created:
        """Start a run. Raises: RequestError, TooManyRequests, EngineDead, StoreError."""
        check_request(request)
        model = self._models.named(request.model or "")
        offered = self._offer(request)
        added = await self._added(request, tenant)
        history = await self._history(request, tenant)
        conversation = [*history, *(entry.item for entry in added)]
        c.check_pairs(conversation)
        response = response_of(
            request,
            offered,
            model,
            response_id=self._new_id("resp"),
            created_at=int(self._now()),
        )
        items = self._shown(request, conversation, tenant)
        turn = turn_of(request, offered, model, items=items, trace_headers=trace_headers or {})
        begun = await model.begin(turn, request_id=f"{response.id}_0")
        try:
            run = Run(
                tenant=tenant,
                sequencer=self._sequencer(request, response, tenant),
                turn=begun,
                hide_reasoning=request.include_reasoning is False,
                with_messages=bool(request.enable_response_messages),
            )
            events = await self._open(run, added)
        except BaseException:
            await begun.aclose()
            raise
        task = await self._runs.start(response.id, self._run_response(run))
        ignored = (*offered.ignored, *without_effect(request))
        return Created(
            id=response.id,
            background=response.background,
            events=events,
            ignored=ignored,
            task=task,
        )

    def _offer(self, request: CreateResponse) -> Offer:
        tools = [
            decode_tool(raw, f"tools[{position}]")
            for position, raw in enumerate(request.tools or ())
        ]
        return offer(tools, request.tool_choice)

    async def _added(self, request: CreateResponse, tenant: str) -> list[c.Entry]:
        added = c.entries(request.input)
        c.check_input(added)
        return [await self._resolved(entry, tenant) for entry in added]

    async def _resolved(self, entry: c.Entry, tenant: str) -> c.Entry:
        if not isinstance(entry.item, i.ItemReference):
            return entry
        try:
            stored = await self._store.item(tenant, entry.item.id)
        except NotFound:
            raise RequestError(
                f"Item with id {entry.item.id[:100]!r} not found.", param="input"
            ) from None
        return c.Entry(item=decode_item(stored.raw, "input"), raw=stored.raw)

    async def _history(self, request: CreateResponse, tenant: str) -> list[i.AnyItem]:
        previous = request.previous_response_id
        if previous is None:
            return []
        try:
            parent = await self._store.get(tenant, previous)
            stored = await self._store.conversation(tenant, previous)
        except NotFound:
            raise RequestError(
                f"Previous response with id {previous[:100]!r} not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None
        if parent.status in ("queued", "in_progress", "failed"):
            raise RequestError(
                f"Previous response {previous!r} is {parent.status} and cannot be continued.",
                param="previous_response_id",
                code="invalid_value",
            )
        return [decode_item(item.raw, "previous_response_id") for item in stored]

    def _shown(
        self, request: CreateResponse, conversation: Sequence[i.AnyItem], tenant: str
    ) -> list[i.AnyItem]:
        """Return what the model is shown of the conversation, sealed reasoning opened."""
        every = request.reasoning is not None and request.reasoning.context == "all_turns"
        shown = c.shown(conversation, all_reasoning=every)
        return [self._opened(item, tenant) for item in shown]

    def _opened(self, item: i.AnyItem, tenant: str) -> i.AnyItem:
        """Return a reasoning item with its sealed text opened, where only that is there."""
        if not isinstance(item, i.Reasoning) or item.content or not item.encrypted_content:
            return item
        text = self._unseal(tenant, item.encrypted_content)
        if text is None:
            return item  # foreign or expired: what is readable of it is still shown
        return replace(item, content=(ReasoningText(text=text),))

    def _sequencer(self, request: CreateResponse, response: Response, tenant: str) -> Sequencer:
        sealed = "reasoning.encrypted_content" in (request.include or ())
        return Sequencer(
            response,
            new_id=self._new_id,
            now=self._now,
            seal=(lambda text: self._seal(tenant, text)) if sealed else None,
        )

    async def _open(self, run: Run, added: Sequence[c.Entry]) -> Batches:
        """Save the response, begin its log and return a reader of it."""
        first = [*run.sequencer.start(), *run.sequencer.begin()]
        response = run.sequencer.response
        if run.stored:
            items = [c.resource(entry, self._new_id) for entry in added]
            stored = [StoredItem(id=item_id, raw=raw) for item_id, raw in items]
            await self._store.create(run.tenant, StoredResponse(response=response, input=stored))
        await self._log.create(run.id)
        await self._log.append(run.id, first)
        return await self._log.open(run.id)
