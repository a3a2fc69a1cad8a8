"""Start a response, or queue it: admit its first turn, save it, open its log, run it.

A background response waits in the store if this server has no free slot. Any server with a free
slot starts it later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

from msgspec import Struct

from antiphon.application.input.from_request import wants_logprobs
from antiphon.application.input.items import to_stored_item
from antiphon.application.ports import (
    AdmitPrompt,
    Clock,
    EventBatches,
    EventLog,
    Lease,
    NewRun,
    Store,
    StoredItem,
    StoredResponse,
)
from antiphon.application.responses.prepare import PreparedResponse, outlives_client
from antiphon.application.runs.active_runs import ActiveRuns, cancel_once
from antiphon.application.runs.event_chunks import encode_chunk
from antiphon.application.runs.journal import DurableJournal, ForegroundJournal
from antiphon.application.runs.logprob_budget import LogprobBudget
from antiphon.application.runs.prepare_turn import PreparedTurn
from antiphon.application.runs.run_response import MakeSequencer, Run, RunResponse
from antiphon.application.runs.stored_events import FollowedEvents, StoredEvents
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.key_locks import KeyLocks
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.access.limits import LimitState
from antiphon.domain.errors import ConcurrencyLimitExceeded, EngineDead, NotFound, StoreError
from antiphon.domain.events import Event
from antiphon.domain.history import conversation as c
from antiphon.domain.history.include_filter import METRICS
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Response

logger = logging.getLogger("antiphon.requests")
DAY_S = 24 * 60 * 60

SessionState = Literal["begun", "continued", "aside"]
"""How a response has to do with the session that its request names; `aside`: it is not in it."""


class StartLimits(Struct, frozen=True, kw_only=True):
    """`keep_days`: how long responses are stored (0: forever). `max_waiting`: how many responses
    of a tenant may wait. `retry_s`: how long writes to a failing store are retried.
    """

    keep_days: float = 30
    max_waiting: int = 1000
    retry_s: float = 10


class AcceptedResponse(Struct, frozen=True, kw_only=True):
    """A running or waiting response, as it was saved, with its events.

    `request` is what was asked for, with its prompt template applied. `shown_items` are all items
    that the model was shown, if the caller must remember them.
    `rate_limits` is what the caller's key has used. `run` and `task` are None if the response
    waits. `session` is set if the request names one.
    """

    request: CreateResponse
    response: Response
    turn: PreparedTurn
    events: EventBatches
    shown_items: Sequence[StoredItem] = ()
    ignored: Sequence[str]
    rate_limits: Sequence[LimitState] = ()
    outlives_client: bool = False
    run: Run | None = None
    task: asyncio.Task[None] | None = None
    session: SessionState | None = None

    @property
    def id(self) -> str:
        return self.response.id

    @property
    def background(self) -> bool:
        return self.response.background

    @property
    def stored(self) -> bool:
        return self.response.store

    def conversation(self) -> list[StoredItem]:
        """Return the items that the model was shown, and its output."""
        output = self.run.sequencer.response.output if self.run else ()
        return [*self.shown_items, *(to_stored_item(c.entry(item)) for item in output)]

    async def leave(self) -> None:
        """Stop reading, and cancel the response unless it outlives its client."""
        await self.events.aclose()
        if self.task is None or self.run is None or self.outlives_client or self.run.is_over:
            return
        cancel_once(self.task)


class StartResponse:
    """Runs a prepared response here, or lets it wait in the store for a server with a free slot."""

    def __init__(
        self,
        store: Store,
        log: EventLog,
        runs: ActiveRuns,
        run_response: RunResponse,
        make_sequencer: MakeSequencer,
        *,
        owner: str,
        now: Clock,
        limits: StartLimits,
    ) -> None:
        self._store = store
        self._log = log
        self._runs = runs
        self._run_response = run_response
        self._make_sequencer = make_sequencer
        self._owner = owner
        self._now = now
        self._limits = limits
        self._compensation = Compensation()
        self._queue_locks = KeyLocks()

    async def __call__(
        self, prepared: PreparedResponse, *, admit: AdmitPrompt | None = None
    ) -> AcceptedResponse:
        """`admit` may delay or refuse the prompt of the first turn.

        Raises: RequestError, ServerOverloaded, ConcurrencyLimitExceeded, ServerShuttingDown,
        EngineDead, StoreError.
        """
        may_wait = prepared.response.background and prepared.job is not None
        if may_wait and self._runs.must_wait(prepared.tenant):
            return await self._queue(prepared)
        return await self._start(prepared, admit)

    async def _queue(self, prepared: PreparedResponse) -> AcceptedResponse:
        """Save the response as queued. Raises: ConcurrencyLimitExceeded."""
        if any(each.needs_this_server for each in prepared.turn.tool_callers.values()):
            raise ConcurrencyLimitExceeded(
                "The server that has the container runs as many background responses as it may. "
                "Send the request again when one of them is complete.",
                code="rate_limit_exceeded",
            )
        # The next one of the tenant is counted when this one is saved.
        async with self._queue_locks.of(prepared.tenant):
            return await self._queue_next(prepared)

    async def _queue_next(self, prepared: PreparedResponse) -> AcceptedResponse:
        waiting = (await self._store.get_storage_usage(prepared.tenant)).waiting
        if waiting >= self._limits.max_waiting:
            raise ConcurrencyLimitExceeded(
                f"{waiting} background responses are already waiting, which is the limit. "
                "Send the request again when some of them are complete.",
                code="rate_limit_exceeded",
            )
        prepared.recorder.queue()
        submission = prepared.submission
        sequencer = self._make_sequencer(
            prepared.response, submission.request, prepared.tenant, agent=submission.agent_name
        )
        events = sequencer.open()
        try:
            await self._save(prepared, prepared.response, events, owner=None)
        except BaseException:
            await run_to_completion(self._delete_abandoned(prepared))
            raise
        self._runs.queue(prepared.tenant)
        return _accepted(
            prepared, prepared.response, StoredEvents(self._store, prepared.tenant, prepared.id)
        )

    async def _start(
        self, prepared: PreparedResponse, admit: AdmitPrompt | None
    ) -> AcceptedResponse:
        """Run the response here.

        Raises: RequestError, ServerOverloaded, ServerShuttingDown, EngineDead.
        """
        slot_of = prepared.tenant if prepared.response.background else None
        with self._runs.mark_active(prepared.id, slot_of=slot_of):
            # While it was prepared, it was not active, and the server may have stopped meanwhile.
            self._runs.check_not_drained()
            prepared.recorder.open_turn()
            await prepared.turns.start(admit)
            try:
                run = self._make_run(prepared)
                events = await self._open_log(prepared, run)
                response = run.sequencer.response
            except BaseException:
                await prepared.turns.aclose()
                if prepared.response.store:  # also if this was cancelled: it may be stored already
                    await run_to_completion(self._delete_abandoned(prepared))
                raise
            lease = run.lease if response.store else None
            task = await self._runs.start(
                run.id, self._run_response(run), lease=lease, recorder=run.recorder
            )
        return _accepted(prepared, response, events, run, task)

    def _make_run(self, prepared: PreparedResponse) -> Run:
        request, tenant = prepared.submission.request, prepared.tenant
        lease = Lease(tenant=tenant, response_id=prepared.id)
        store, retry_s = self._store, self._limits.retry_s
        return Run(
            lease=lease,
            input=self._input_of(prepared),
            sequencer=self._make_sequencer(
                prepared.response,
                request,
                tenant,
                prepared.recorder.progress,
                agent=prepared.submission.agent_name,
            ),
            turns=prepared.turns,
            recorder=prepared.recorder,
            journal=DurableJournal(
                store, self._log, lease, retry_s=retry_s, recorder=prepared.recorder
            )
            if prepared.is_durable
            else ForegroundJournal(
                self._log, lease, store if prepared.response.store else None, retry_s=retry_s
            ),
            charge=prepared.charge,
            can_resume=prepared.job is not None,
            hide_reasoning=request.include_reasoning is False,
            with_messages=bool(request.enable_response_messages),
            with_metrics=METRICS in (request.include or ()),
            logprobs=LogprobBudget() if wants_logprobs(request) else None,
            steers=prepared.submission.steers,
            is_diagnosed=request.comparison_response_id is not None,
            is_moderated=request.moderation is not None,
            stream_options=request.stream_options,
        )

    def _input_of(self, prepared: PreparedResponse) -> Sequence[StoredItem]:
        # If the previous response was never stored, its items must be stored with this one.
        submission = prepared.submission
        is_orphan = submission.request.previous_response_id in (submission.remembered or {})
        return prepared.shown_items if is_orphan else prepared.input

    async def _open_log(self, prepared: PreparedResponse, run: Run) -> EventBatches:
        """Save the response, create its log and return a reader of it."""
        events = [*run.sequencer.open(), *run.sequencer.start()]
        if run.sequencer.response.store:
            await self._save(prepared, run.sequencer.response, events, owner=self._owner)
        response_id, tenant = run.id, prepared.tenant
        await self._log.create(response_id, tenant, is_stored=prepared.is_durable)
        await self._log.append(response_id, events)
        reader = await self._log.open(response_id)
        if not prepared.is_durable:
            return reader
        return FollowedEvents(reader, self._store, tenant, response_id)

    async def _save(
        self,
        prepared: PreparedResponse,
        response: Response,
        events: Sequence[Event],
        *,
        owner: str | None,
    ) -> None:
        key = prepared.submission.idempotency_key
        run = NewRun(
            owner=owner,
            job=prepared.job,
            events=encode_chunk(events) if prepared.is_durable else None,
            key=None if key is None else key.key,
        )
        stored = StoredResponse(
            response=prepared.recorder.recorded(response),
            input=self._input_of(prepared),
            expires_at=self._expiry_of(response),
            run=run,
        )
        with prepared.recorder.time_store_write():
            await self._store.create_response(prepared.tenant, stored)

    def _expiry_of(self, response: Response) -> float | None:
        # A conversation's responses do not expire (docs/reference/api.md#conversations).
        if response.conversation is not None or not self._limits.keep_days:
            return None
        return self._now() + self._limits.keep_days * DAY_S

    async def _delete_abandoned(self, prepared: PreparedResponse) -> None:
        """Delete a response whose id no client knows, now or later; never raises.

        With an Idempotency-Key, a client may find the response at any time. So it is deleted now or
        not at all; then it will run.
        """
        if prepared.submission.idempotency_key is not None:
            with suppress(StoreError):
                await self._delete(prepared.tenant, prepared.id)
            return
        await self._compensation.run(
            partial(self._delete, prepared.tenant, prepared.id),
            log_message=f"response {prepared.id} is stored although no client knows of it",
        )

    async def _delete(self, tenant: str, response_id: str) -> None:
        with suppress(NotFound):
            await self._store.delete_response(tenant, response_id)


def _accepted(
    prepared: PreparedResponse,
    response: Response,
    events: EventBatches,
    run: Run | None = None,
    task: asyncio.Task[None] | None = None,
) -> AcceptedResponse:
    ignored = prepared.turn.ignored
    with suppress(EngineDead):  # it may have died since its turn started
        # Some models find out what they cannot do when the turn starts.
        ignored = (*ignored, *prepared.turn.model.ignored_fields(prepared.turn.turn))
    if ignored:
        prepared.recorder.ignore(ignored)
        logger.info("response %s: without effect: %s", prepared.id, ", ".join(ignored))
    return AcceptedResponse(
        request=prepared.submission.request,
        response=response,
        turn=prepared.turn,
        events=events,
        shown_items=prepared.shown_items
        if prepared.submission.remembered is not None and not response.store
        else (),
        ignored=ignored,
        rate_limits=prepared.rate_limits,
        outlives_client=outlives_client(prepared.submission),
        run=run,
        task=task,
    )
