"""Create a response: check the request, load its conversation, admit it in the engine, save it,
start the run.

Whatever can be answered with a status code is raised here, before anything is written to the
client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.application.continuations import Remembered
from antiphon.application.expand_prompt import ExpandPrompt
from antiphon.application.hold_conversation import HoldConversation
from antiphon.application.plan_turns import plan_of
from antiphon.application.ports import (
    Batches,
    Clock,
    EventLog,
    NewId,
    ResponseStore,
    StoredItem,
    StoredResponse,
    ToolServers,
)
from antiphon.application.prepare_turn import Prepared, PrepareTurn
from antiphon.application.read_items import as_it_is, to_store
from antiphon.application.requested import response_of, without_effect
from antiphon.application.run_response import Run, RunResponse
from antiphon.application.runs import Runs, to_the_end
from antiphon.application.show_items import ShowItems
from antiphon.application.turns import Seal, Turns
from antiphon.domain import conversation as c
from antiphon.domain.checks import check_request
from antiphon.domain.errors import NotFound
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import Response
from antiphon.domain.sequencer import Sequencer

logger = logging.getLogger("antiphon.requests")


class Created(Struct, frozen=True, kw_only=True):
    """A response that runs: its events, and how to leave it.

    `given` is all that the model was given, where the caller is to remember it.
    """

    run: Run
    prepared: Prepared
    events: Batches
    given: Sequence[StoredItem] = ()
    ignored: Sequence[str]
    task: asyncio.Task[None]

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def background(self) -> bool:
        return self.run.sequencer.response.background

    @property
    def stored(self) -> bool:
        return self.run.stored

    def conversation(self) -> list[StoredItem]:
        """Return `given` and the output: what the store would have kept."""
        output = self.run.sequencer.response.output
        return [*self.given, *(as_it_is(c.entry(item)) for item in output)]

    async def leave(self) -> None:
        """Stop reading; a foreground response ends with its reader (api_surface 6.1)."""
        await self.events.aclose()
        if not self.background and not self.run.is_over:
            self.task.cancel()


class CreateResponseService:
    """`POST /v1/responses`, streamed or not: both read the log of the same run."""

    def __init__(
        self,
        expand_prompt: ExpandPrompt,
        hold_conversation: HoldConversation,
        prepare_turn: PrepareTurn,
        show_items: ShowItems,
        store: ResponseStore,
        log: EventLog,
        runs: Runs,
        run_response: RunResponse,
        tool_servers: ToolServers | None = None,
        *,
        new_id: NewId,
        now: Clock,
        seal: Seal,
    ) -> None:
        self._expand_prompt = expand_prompt
        self._hold_conversation = hold_conversation
        self._prepare_turn = prepare_turn
        self._show_items = show_items
        self._store = store
        self._log = log
        self._runs = runs
        self._run_response = run_response
        self._tool_servers = tool_servers
        self._new_id = new_id
        self._now = now
        self._seal = seal

    async def __call__(
        self,
        request: CreateResponse,
        *,
        tenant: str,
        trace_headers: Mapping[str, str] | None = None,
        remembered: Remembered | None = None,
    ) -> Created:
        """Start a run. `remembered` is what the caller keeps of unstored responses, if anything.

        Raises: RequestError, TooManyRequests, EngineDead, StoreError.
        """
        request = await self._expand_prompt(request)
        check_request(request)
        response_id = self._new_id("resp")
        async with self._hold_conversation(request, tenant=tenant, response_id=response_id):
            return await self._begin(request, response_id, tenant, trace_headers, remembered)

    async def _begin(
        self,
        request: CreateResponse,
        response_id: str,
        tenant: str,
        trace_headers: Mapping[str, str] | None,
        remembered: Remembered | None,
    ) -> Created:
        prepared = await self._prepare_turn(
            request, tenant=tenant, trace_headers=trace_headers, remembered=remembered
        )
        response = response_of(
            request,
            prepared.offered,
            prepared.model,
            response_id=response_id,
            created_at=int(self._now()),
            removed=prepared.removed,
        )
        plan = await plan_of(request, prepared, tenant=tenant)
        turns = Turns(
            plan, self._show_items, self._seal, self._tool_servers, response_id=response.id
        )
        await turns.begin()
        try:
            remembers = remembered is not None and not response.store
            is_kept = response.store or response.conversation is not None
            added = to_store(prepared.added, self._new_id) if is_kept or remembers else []
            # The store knows no parent of what continues a response that was never stored.
            is_orphan = request.previous_response_id in (remembered or {})
            run = Run(
                tenant=tenant,
                input=self._given(prepared, added) if is_orphan else added,
                sequencer=self._sequencer(request, response, tenant),
                turns=turns,
                hide_reasoning=request.include_reasoning is False,
                with_messages=bool(request.enable_response_messages),
            )
            events = await self._open(run)
        except BaseException:
            await turns.aclose()
            if response.store:  # cancelled: the store may have it all the same
                await to_the_end(self._forget(tenant, response.id))
            raise
        task = await self._runs.start(response.id, self._run_response(run))
        ignored = (*prepared.offered.ignored, *without_effect(request))
        if ignored:  # told in a header too, where there is one
            logger.info("response %s: without effect: %s", response.id, ", ".join(ignored))
        given = self._given(prepared, added) if remembers else ()
        return Created(
            run=run, prepared=prepared, events=events, given=given, ignored=ignored, task=task
        )

    async def _forget(self, tenant: str, response_id: str) -> None:
        """Delete a response that nobody was told of; a store that fails is logged, not raised."""
        try:
            await self._store.delete(tenant, response_id)
        except NotFound:
            pass
        except Exception:
            logger.exception("response %s stays unfinished until the next start", response_id)

    def _given(self, prepared: Prepared, added: Sequence[StoredItem]) -> list[StoredItem]:
        return [*map(as_it_is, prepared.history), *added]

    def _sequencer(self, request: CreateResponse, response: Response, tenant: str) -> Sequencer:
        sealed = "reasoning.encrypted_content" in (request.include or ())
        return Sequencer(
            response,
            new_id=self._new_id,
            now=self._now,
            seal=(lambda text: self._seal(tenant, text)) if sealed else None,
        )

    async def _open(self, run: Run) -> Batches:
        """Save the response, begin its log and return a reader of it."""
        first = [*run.sequencer.start(), *run.sequencer.begin()]
        response = run.sequencer.response
        if run.stored:
            stored = StoredResponse(response=response, input=run.input)
            await self._store.create(run.tenant, stored)
        await self._log.create(run.id)
        await self._log.append(run.id, first)
        return await self._log.open(run.id)
