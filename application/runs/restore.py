"""From what the store has of a run, the run: to be begun, to be ended, to be cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from msgspec import Struct

from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.ports import (
    EventLog,
    Lease,
    LeasedRun,
    ModelTurn,
    Store,
)
from antiphon.application.runs.jobs import Jobs
from antiphon.application.runs.journal import DurableJournal, ForegroundJournal
from antiphon.application.runs.plan_turns import PlanTurns
from antiphon.application.runs.prepare_turn import PrepareTurn
from antiphon.application.runs.run_response import Run, RunTurns
from antiphon.application.runs.sequencers import MakeSequencer
from antiphon.application.runs.stored_events import log_of
from antiphon.application.runs.turns import Turns
from antiphon.application.support.retry import retry
from antiphon.domain.checks import check_request
from antiphon.domain.errors import (
    CorruptLog,
    EventOutOfOrder,
    NotFound,
    RequestError,
    TooManyRequests,
)
from antiphon.domain.events import Event
from antiphon.domain.items import AnyItem
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import TERMINAL, Failure
from antiphon.domain.sequencer import Sequencer
from antiphon.domain.usage import TurnUsage

logger = logging.getLogger("antiphon.runs")

MAX_EPOCHS = 4
"""A run that was begun so often and never came to its first event may be what ends servers."""

BUSY_S = 1.0
"""Until an engine that takes no more work is asked again."""


LOST = Failure(
    code="server_restarted", message="The server was stopped before the response was complete."
)


class RestoredRun(Struct, frozen=True, kw_only=True):
    """A run as far as it came, with its `events`; `failure` is why it cannot be begun."""

    run: Run
    events: Sequence[Event] = ()
    failure: Failure | None = None


class RestoreRun:
    """A run in the background can be begun as long as nothing of it was shown; its log goes on with
    the next number, whatever becomes of it.
    """

    def __init__(
        self,
        expand_prompt: ExpandPrompt,
        prepare_turn: PrepareTurn,
        plan_turns: PlanTurns,
        jobs: Jobs,
        store: Store,
        log: EventLog,
        make_sequencer: MakeSequencer,
        *,
        retry_s: float = 10,
    ) -> None:
        self._expand_prompt = expand_prompt
        self._prepare_turn = prepare_turn
        self._plan_turns = plan_turns
        self._jobs = jobs
        self._store = store
        self._log = log
        self._make_sequencer = make_sequencer
        self._retry_s = retry_s

    async def __call__(self, taken: LeasedRun) -> RestoredRun | None:
        """Return the run, None if nothing is left to do for it. Raises: StoreError."""
        lease = taken.lease
        request, failure = await self._request(taken)
        sequencer, events = self._resumed(taken, request, await self._logged(taken))
        if sequencer.response.status in TERMINAL:  # of a store that had logged the end alone
            await self._store.finish(lease, sequencer.response)
            return None
        if events is None or sequencer.has_output or lease.epoch > MAX_EPOCHS:
            failure = LOST
        run = Run(
            lease=lease,
            sequencer=sequencer,
            turns=LazyTurns(partial(self._begin, request, lease)) if request else EmptyTurns(),
            journal=ForegroundJournal(self._log, lease, self._store, retry_s=self._retry_s)
            if events is None
            else DurableJournal(self._store, self._log, lease, retry_s=self._retry_s),
            can_restart=failure is None,
            hide_reasoning=request is not None and request.include_reasoning is False,
            with_messages=request is not None and bool(request.enable_response_messages),
        )
        return RestoredRun(run=run, events=events or (), failure=failure)

    def _resumed(
        self, taken: LeasedRun, request: CreateResponse | None, events: Sequence[Event] | None
    ) -> tuple[Sequencer, Sequence[Event] | None]:
        """Return the sequencer after these events, and the events that it goes on from, if any."""
        tenant = taken.lease.tenant
        if events is not None:
            try:
                resumed = self._make_sequencer.resume(taken.response, events, request, tenant)
            except EventOutOfOrder:
                logger.exception("response %s: its log cannot go on", taken.lease.response_id)
            else:
                return resumed, events
        anew = self._make_sequencer(taken.response, request, tenant)
        anew.open()
        anew.start()
        return anew, None

    async def _logged(self, taken: LeasedRun) -> list[Event] | None:
        """Return the run's events, None where the store has no log of it that can go on."""
        try:
            return await log_of(self._store, taken.lease.tenant, taken.lease.response_id)
        except NotFound:
            return None
        except CorruptLog:
            logger.exception("response %s: its log cannot go on", taken.lease.response_id)
            return None

    async def _request(self, taken: LeasedRun) -> tuple[CreateResponse | None, Failure | None]:
        """Return what was asked for, or why that cannot be begun."""
        if taken.job is None:
            return None, LOST
        try:
            return await self._jobs.request_of(taken.lease.tenant, taken.job), None
        except RequestError as exc:
            logger.warning("response %s: %s", taken.lease.response_id, exc)
            return None, Failure(code="server_error", message=exc.message)

    async def _begin(self, request: CreateResponse, lease: Lease) -> Turns:
        """Return the turns, the first of them admitted. Raises: RequestError, EngineError."""
        request = await self._expand_prompt(request)
        check_request(request)
        prepared = await retry(
            partial(self._prepare_turn, request, tenant=lease.tenant), self._retry_s
        )
        turns = await self._plan_turns(
            request, prepared, tenant=lease.tenant, response_id=f"{lease.response_id}_{lease.epoch}"
        )
        while True:
            try:
                await turns.start()
            except TooManyRequests:
                await asyncio.sleep(BUSY_S)
            else:
                return turns


class LazyTurns(RunTurns):
    """Turns that are made when they are asked for."""

    def __init__(self, begin: Callable[[], Awaitable[Turns]]) -> None:
        self._begin = begin

    async def iterate(
        self, output: Sequence[AnyItem], usages: Sequence[TurnUsage]
    ) -> AsyncGenerator[ModelTurn]:
        turns = await self._begin()
        async with aclosing(turns.iterate(output, usages)) as each:
            async for turn in each:
                yield turn


class EmptyTurns(RunTurns):
    """For a run that is only going to be ended."""

    async def iterate(
        self, _output: Sequence[AnyItem], _usages: Sequence[TurnUsage]
    ) -> AsyncGenerator[ModelTurn]:
        return
        yield
