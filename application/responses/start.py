"""Start a response, or queue it: admit its first turn, save it, open its log, run it.

A background response for which this server has no free slot waits in the store. Whichever server
has a free slot starts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from antiphon.application.input.items import to_stored_item
from antiphon.application.ports import (
    Clock,
    EventBatches,
    EventLog,
    Lease,
    NewRun,
    Store,
    StoredItem,
    StoredResponse,
)
from antiphon.application.responses.prepare import PreparedResponse
from antiphon.application.runs.active_runs import ActiveRuns, stop
from antiphon.application.runs.event_chunks import encode_chunk
from antiphon.application.runs.journal import DurableJournal, ForegroundJournal
from antiphon.application.runs.prepare_turn import PreparedTurn
from antiphon.application.runs.run_response import Run, RunResponse
from antiphon.application.runs.sequencers import MakeSequencer
from antiphon.application.runs.stored_events import FollowedEvents, StoredEvents
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain import conversation as c
from antiphon.domain.errors import NotFound, QueueFull, StoreError
from antiphon.domain.events import Event
from antiphon.domain.response import Response

logger = logging.getLogger("antiphon.requests")
DAY_S = 24 * 60 * 60


class StartLimits(Struct, frozen=True, kw_only=True):
    """`keep_days` says how long responses are kept (0: forever), `max_waiting` how many of a
    tenant may wait, `retry_s` how long writes to a failing store are retried.
    """

    keep_days: float = 30
    max_waiting: int = 1000
    retry_s: float = 10


class AcceptedResponse(Struct, frozen=True, kw_only=True):
    """A response that runs or waits, as it was saved, with its events.

    `shown_items` is all that the model was shown, where the caller must remember it. `run` and
    `task` are None where the response waits.
    """

    response: Response
    turn: PreparedTurn
    events: EventBatches
    shown_items: Sequence[StoredItem] = ()
    ignored: Sequence[str]
    outlives_client: bool = False
    run: Run | None = None
    task: asyncio.Task[None] | None = None

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
        """Stop reading; a response ends with its reader unless it outlives it."""
        await self.events.aclose()
        if self.task is None or self.run is None or self.outlives_client or self.run.is_over:
            return
        stop(self.task)


class StartResponse:
    """Runs the response here, or leaves it in the store for whichever server has room."""

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

    async def __call__(self, prepared: PreparedResponse) -> AcceptedResponse:
        """Start the run, or let the response wait in the store.

        Raises: RequestError, TooManyRequests, QueueFull, EngineDead, StoreError.
        """
        return await (self._queue(prepared) if self._must_wait(prepared) else self._start(prepared))

    def _must_wait(self, prepared: PreparedResponse) -> bool:
        runs = self._runs
        may_wait = prepared.response.background and prepared.job is not None
        return may_wait and (runs.may_have_waiting_runs or not runs.free_slots)

    async def _queue(self, prepared: PreparedResponse) -> AcceptedResponse:
        """Let the response wait in the store. Raises: QueueFull."""
        waiting = (await self._store.usage(prepared.tenant)).waiting
        if waiting >= self._limits.max_waiting:
            raise QueueFull(
                f"{waiting} responses in the background are waiting, which is all that may wait. "
                "Send the request again when some of them are complete.",
                code="rate_limit_exceeded",
            )
        first = self._make_sequencer(prepared.response, prepared.request, prepared.tenant).open()
        try:
            await self._save(prepared, prepared.response, first, owner=None)
        except BaseException:
            await run_to_completion(self._forget(prepared))
            raise
        self._runs.may_have_waiting_runs = True
        self._runs.wanted.set()
        return _accepted(
            prepared, prepared.response, StoredEvents(self._store, prepared.tenant, prepared.id)
        )

    async def _start(self, prepared: PreparedResponse) -> AcceptedResponse:
        """Run the response here. Raises: RequestError, TooManyRequests, EngineDead."""
        with self._runs.counted_as_active(prepared.id, in_slot=prepared.response.background):
            await prepared.turns.start()
            try:
                run = self._run(prepared)
                events = await self._open(prepared, run)
                saved = run.sequencer.response
            except BaseException:
                await prepared.turns.aclose()
                if prepared.response.store:  # cancelled: the store may have it all the same
                    await run_to_completion(self._forget(prepared))
                raise
            lease = run.lease if run.stored else None
            task = await self._runs.start(run.id, self._run_response(run), lease=lease)
        return _accepted(prepared, saved, events, run, task)

    def _run(self, prepared: PreparedResponse) -> Run:
        request, lease = prepared.request, Lease(tenant=prepared.tenant, response_id=prepared.id)
        store, retry_s = self._store, self._limits.retry_s
        return Run(
            lease=lease,
            input=self._input(prepared),
            sequencer=self._make_sequencer(prepared.response, prepared.request, prepared.tenant),
            turns=prepared.turns,
            journal=DurableJournal(store, self._log, lease, retry_s=retry_s)
            if prepared.is_durable
            else ForegroundJournal(
                self._log, lease, store if prepared.response.store else None, retry_s=retry_s
            ),
            can_restart=prepared.job is not None,
            hide_reasoning=request.include_reasoning is False,
            with_messages=bool(request.enable_response_messages),
        )

    def _input(self, prepared: PreparedResponse) -> Sequence[StoredItem]:
        # The store knows no parent of what continues a response that was never stored.
        is_orphan = prepared.request.previous_response_id in (prepared.remembered or {})
        return prepared.shown_items if is_orphan else prepared.input

    async def _open(self, prepared: PreparedResponse, run: Run) -> EventBatches:
        """Save the response, begin its log and return a reader of it."""
        first = [*run.sequencer.open(), *run.sequencer.start()]
        if run.stored:
            await self._save(prepared, run.sequencer.response, first, owner=self._owner)
        await self._log.create(run.id)
        await self._log.append(run.id, first)
        events = await self._log.open(run.id)
        if not prepared.is_durable:
            return events
        return FollowedEvents(events, self._store, prepared.tenant, run.id)

    async def _save(
        self,
        prepared: PreparedResponse,
        response: Response,
        first: Sequence[Event],
        *,
        owner: str | None,
    ) -> None:
        events = encode_chunk(first) if prepared.is_durable else None
        stored = StoredResponse(
            response=response,
            input=self._input(prepared),
            expires_at=self._expiry(response),
            run=NewRun(owner=owner, job=prepared.job, events=events, key=prepared.key),
        )
        await self._store.create(prepared.tenant, stored)

    def _expiry(self, response: Response) -> float | None:
        # What is in a conversation is kept as long as that (docs/reference/api.md#conversations).
        if response.conversation is not None or not self._limits.keep_days:
            return None
        return self._now() + self._limits.keep_days * DAY_S

    async def _forget(self, prepared: PreparedResponse) -> None:
        """Delete a response that nobody was told of, at once or later; never raises.

        Where there is a key it may be found by that at any time: it is deleted now, or it runs.
        """
        if prepared.key is not None:
            with suppress(StoreError):
                await self._delete(prepared.tenant, prepared.id)
            return
        await self._compensation.run(
            partial(self._delete, prepared.tenant, prepared.id),
            log_message=f"response {prepared.id} is stored although nobody was told of it",
        )

    async def _delete(self, tenant: str, response_id: str) -> None:
        with suppress(NotFound):
            await self._store.delete(tenant, response_id)


def _accepted(
    prepared: PreparedResponse,
    response: Response,
    events: EventBatches,
    run: Run | None = None,
    task: asyncio.Task[None] | None = None,
) -> AcceptedResponse:
    ignored = prepared.turn.ignored
    if ignored:  # the header names them too, where there is one
        logger.info("response %s: without effect: %s", prepared.id, ", ".join(ignored))
    return AcceptedResponse(
        response=response,
        turn=prepared.turn,
        events=events,
        shown_items=prepared.shown_items if prepared.remembers else (),
        ignored=ignored,
        outlives_client=prepared.is_durable,
        run=run,
        task=task,
    )
