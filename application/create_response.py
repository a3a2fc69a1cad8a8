"""Create a response: check the request, load its conversation, admit it in the engine, save it,
start the run.

Whatever can be answered with a status code is raised here, before anything is written to the
client. A response in the background for which this server has no room waits in the store instead:
whichever server has some begins it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from antiphon.application.amends import Amends
from antiphon.application.continuations import Remembered
from antiphon.application.event_chunks import chunk_of
from antiphon.application.expand_prompt import ExpandPrompt
from antiphon.application.hold_conversation import HoldConversation
from antiphon.application.jobs import Jobs
from antiphon.application.journal import DurableJournal, ForegroundJournal
from antiphon.application.plan_turns import PlanTurns
from antiphon.application.ports import (
    Batches,
    Clock,
    EventLog,
    Lease,
    NewId,
    NewRun,
    Store,
    StoredItem,
    StoredResponse,
)
from antiphon.application.prepare_turn import Prepared, PrepareTurn
from antiphon.application.quotas import CheckQuota
from antiphon.application.read_items import as_it_is, to_store
from antiphon.application.requested import response_of, sealing
from antiphon.application.run_response import Run, RunResponse
from antiphon.application.runs import Runs, stop, to_the_end
from antiphon.application.stored_events import Following, StoredEvents
from antiphon.application.turns import Seal, Turns
from antiphon.domain import conversation as c
from antiphon.domain.checks import check_request
from antiphon.domain.errors import NotFound, QueueFull, StoreError
from antiphon.domain.events import Event
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import Response
from antiphon.domain.sequencer import Sequencer

logger = logging.getLogger("antiphon.requests")

DAY_S = 24 * 60 * 60


class CreateLimits(Struct, frozen=True, kw_only=True):
    """`keep_days` is for how long responses are kept, 0 for ever; `max_waiting` how many of a
    tenant may wait; `retry_s` for how long a store that fails is asked again.
    """

    keep_days: float = 30
    max_waiting: int = 1000
    retry_s: float = 10


class Created(Struct, frozen=True, kw_only=True):
    """A response that runs, or waits, as it was saved; its events, and how to leave it.

    `given` is all that the model was given, where the caller is to remember it. `run` and `task`
    are None where it waits.
    """

    response: Response
    prepared: Prepared
    events: Batches
    given: Sequence[StoredItem] = ()
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
        """Return `given` and the output: what the store would have kept."""
        output = self.run.sequencer.response.output if self.run else ()
        return [*self.given, *(as_it_is(c.entry(item)) for item in output)]

    async def leave(self) -> None:
        """Stop reading; a response ends with its reader (api_surface 6.1) unless it outlives it."""
        await self.events.aclose()
        if self.task is None or self.run is None or self.outlives_client or self.run.is_over:
            return
        stop(self.task)


class _Asked(Struct, frozen=True, kw_only=True):
    """A request that was checked, and what is to be made of it; its turns are not admitted yet.

    `input` is what it brought, where that is kept. `job` is None where only this server can begin
    it.
    """

    tenant: str
    request: CreateResponse
    prepared: Prepared
    response: Response
    turns: Turns
    remembered: Remembered | None
    input: Sequence[StoredItem] = ()
    job: bytes | None = None
    is_durable: bool = False
    key: str | None = None

    @property
    def id(self) -> str:
        return self.response.id

    @property
    def remembers(self) -> bool:
        return self.remembered is not None and not self.response.store

    def given(self) -> list[StoredItem]:
        """Return all that the model is given."""
        return [*map(as_it_is, self.prepared.history), *self.input]

    def created(
        self,
        response: Response,
        events: Batches,
        run: Run | None = None,
        task: asyncio.Task[None] | None = None,
    ) -> Created:
        ignored = self.prepared.ignored
        if ignored:  # told in a header too, where there is one
            logger.info("response %s: without effect: %s", self.id, ", ".join(ignored))
        return Created(
            response=response,
            prepared=self.prepared,
            events=events,
            given=self.given() if self.remembers else (),
            ignored=ignored,
            outlives_client=self.is_durable,
            run=run,
            task=task,
        )


class CreateResponseService:
    """`POST /v1/responses`, streamed or not: both read the log of the same run."""

    def __init__(
        self,
        expand_prompt: ExpandPrompt,
        hold_conversation: HoldConversation,
        prepare_turn: PrepareTurn,
        plan_turns: PlanTurns,
        jobs: Jobs,
        store: Store,
        log: EventLog,
        runs: Runs,
        run_response: RunResponse,
        check_quota: CheckQuota,
        *,
        owner: str,
        new_id: NewId,
        now: Clock,
        seal: Seal,
        limits: CreateLimits,
    ) -> None:
        self._expand_prompt = expand_prompt
        self._hold_conversation = hold_conversation
        self._prepare_turn = prepare_turn
        self._plan_turns = plan_turns
        self._jobs = jobs
        self._store = store
        self._log = log
        self._runs = runs
        self._run_response = run_response
        self._check_quota = check_quota
        self._owner = owner
        self._new_id = new_id
        self._now = now
        self._seal = seal
        self._limits = limits
        self._amends = Amends()

    async def __call__(
        self,
        request: CreateResponse,
        *,
        tenant: str,
        body: bytes | None = None,
        trace_headers: Mapping[str, str] | None = None,
        remembered: Remembered | None = None,
        response_id: str | None = None,
        key: str | None = None,
        strict: bool = False,
    ) -> Created:
        """Start a run, or let it wait. `body` is the request as it came: without it, only this
        server can begin it. `remembered` is what the caller keeps of unstored responses, if any.

        It gets a fresh id where none is given. `key` is the Idempotency-Key that this id was given,
        of a response that is stored: others will ask for it, so it goes on when its client leaves,
        as those in the background do. Raises: RequestError, if `strict` also for what would have no
        effect; TooManyRequests, QueueFull, QuotaExceeded, ServerStops, EngineDead, StoreError.
        """
        self._runs.check_open()
        request = await self._expand_prompt(request)
        check_request(request)
        if request.store is not False or request.conversation_id is not None:
            await self._check_quota(tenant, responses=int(request.store is not False))
        response_id = response_id or self._new_id("resp")
        async with self._hold_conversation(request, tenant=tenant, response_id=response_id):
            asked = await self._ask(
                request,
                response_id,
                tenant=tenant,
                body=body,
                trace_headers=trace_headers,
                remembered=remembered,
                key=key,
                strict=strict,
            )
            return await (self._queue(asked) if self._must_wait(asked) else self._begin(asked))

    async def _ask(
        self,
        request: CreateResponse,
        response_id: str,
        *,
        tenant: str,
        body: bytes | None,
        trace_headers: Mapping[str, str] | None,
        remembered: Remembered | None,
        key: str | None,
        strict: bool,
    ) -> _Asked:
        prepared = await self._prepare_turn(
            request,
            tenant=tenant,
            trace_headers=trace_headers,
            remembered=remembered,
            strict=strict,
        )
        response = response_of(
            request,
            prepared.offered,
            prepared.model,
            response_id=response_id,
            created_at=int(self._now()),
            removed=prepared.removed,
        )
        turns = await self._plan_turns(request, prepared, tenant=tenant, response_id=response_id)
        is_durable = key is not None or response.background
        is_kept = response.store or response.conversation is not None
        remembers = remembered is not None and not response.store
        return _Asked(
            tenant=tenant,
            request=request,
            prepared=prepared,
            response=response,
            turns=turns,
            remembered=remembered,
            input=to_store(prepared.added, self._new_id) if is_kept or remembers else (),
            job=await self._jobs.job_of(tenant, body) if is_durable and body else None,
            is_durable=is_durable,
            key=key,
        )

    def _must_wait(self, asked: _Asked) -> bool:
        runs = self._runs
        may_wait = asked.response.background and asked.job is not None
        return may_wait and (runs.are_waiting or not runs.room)

    async def _queue(self, asked: _Asked) -> Created:
        """Let the response wait in the store. Raises: QueueFull."""
        waiting = (await self._store.use(asked.tenant)).waiting
        if waiting >= self._limits.max_waiting:
            raise QueueFull(
                f"{waiting} responses in the background are waiting, which is all that may wait. "
                "Send the request again when some of them are complete.",
                code="rate_limit_exceeded",
            )
        first = self._sequencer(asked).start()
        try:
            await self._save(asked, asked.response, first, owner=None)
        except BaseException:
            await to_the_end(self._forget(asked))
            raise
        self._runs.are_waiting = True
        self._runs.wanted.set()
        return asked.created(asked.response, StoredEvents(self._store, asked.tenant, asked.id))

    async def _begin(self, asked: _Asked) -> Created:
        """Run the response here. Raises: RequestError, TooManyRequests, EngineDead."""
        with self._runs.at_work(asked.id, in_slot=asked.response.background):
            await asked.turns.begin()
            try:
                run = self._run(asked)
                events = await self._open(asked, run)
                saved = run.sequencer.response
            except BaseException:
                await asked.turns.aclose()
                if asked.response.store:  # cancelled: the store may have it all the same
                    await to_the_end(self._forget(asked))
                raise
            lease = run.lease if run.stored else None
            task = await self._runs.start(run.id, self._run_response(run), lease=lease)
        return asked.created(saved, events, run, task)

    def _run(self, asked: _Asked) -> Run:
        request, lease = asked.request, Lease(tenant=asked.tenant, response_id=asked.id)
        store, retry_s = self._store, self._limits.retry_s
        return Run(
            lease=lease,
            input=self._input(asked),
            sequencer=self._sequencer(asked),
            turns=asked.turns,
            journal=DurableJournal(store, self._log, lease, retry_s=retry_s)
            if asked.is_durable
            else ForegroundJournal(
                self._log, lease, store if asked.response.store else None, retry_s=retry_s
            ),
            is_repeatable=asked.job is not None,
            hide_reasoning=request.include_reasoning is False,
            with_messages=bool(request.enable_response_messages),
        )

    def _input(self, asked: _Asked) -> Sequence[StoredItem]:
        # The store knows no parent of what continues a response that was never stored.
        is_orphan = asked.request.previous_response_id in (asked.remembered or {})
        return asked.given() if is_orphan else asked.input

    def _sequencer(self, asked: _Asked) -> Sequencer:
        return Sequencer(
            asked.response,
            new_id=self._new_id,
            now=self._now,
            seal=sealing(asked.request, self._seal, asked.tenant),
        )

    async def _open(self, asked: _Asked, run: Run) -> Batches:
        """Save the response, begin its log and return a reader of it."""
        first = [*run.sequencer.start(), *run.sequencer.begin()]
        if run.stored:
            await self._save(asked, run.sequencer.response, first, owner=self._owner)
        await self._log.create(run.id)
        await self._log.append(run.id, first)
        events = await self._log.open(run.id)
        if not asked.is_durable:
            return events
        return Following(events, self._store, asked.tenant, run.id)

    async def _save(
        self, asked: _Asked, response: Response, first: Sequence[Event], *, owner: str | None
    ) -> None:
        events = chunk_of(first) if asked.is_durable else None
        stored = StoredResponse(
            response=response,
            input=self._input(asked),
            expires_at=self._expiry(response),
            run=NewRun(owner=owner, job=asked.job, events=events, key=asked.key),
        )
        await self._store.create(asked.tenant, stored)

    def _expiry(self, response: Response) -> float | None:
        # What is in a conversation is kept as long as that (api_surface 7.3).
        if response.conversation is not None or not self._limits.keep_days:
            return None
        return self._now() + self._limits.keep_days * DAY_S

    async def _forget(self, asked: _Asked) -> None:
        """Delete a response that nobody was told of, at once or later; never raises.

        Where there is a key it may be found by that at any time: it is deleted now, or it runs.
        """
        if asked.key is not None:
            with suppress(StoreError):
                await self._delete(asked.tenant, asked.id)
            return
        await self._amends.make(
            partial(self._delete, asked.tenant, asked.id),
            until_then=f"response {asked.id} is stored although nobody was told of it",
        )

    async def _delete(self, tenant: str, response_id: str) -> None:
        with suppress(NotFound):
            await self._store.delete(tenant, response_id)
