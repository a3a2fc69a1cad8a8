"""Restore a run from the store, to start, end or cancel it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.ports import EventLog, Lease, LeasedRun, ModelTurn, Store
from antiphon.application.resources.limits import RunCharge
from antiphon.application.runs.jobs import Jobs
from antiphon.application.runs.journal import DurableJournal, ForegroundJournal
from antiphon.application.runs.plan_turns import PlanTurns
from antiphon.application.runs.prepare_turn import PrepareTurn
from antiphon.application.runs.run_response import Run, RunTurns
from antiphon.application.runs.sequencers import MakeSequencer
from antiphon.application.runs.stored_events import log_of
from antiphon.application.runs.turns import Turns
from antiphon.application.support.retry import retry
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.domain.checks import check_request
from antiphon.domain.errors import (
    CorruptLog,
    EngineDead,
    EventOutOfOrder,
    ModelBusy,
    NotFound,
    RequestError,
    ServerShuttingDown,
    TooManyRequests,
)
from antiphon.domain.events import Event
from antiphon.domain.include_filter import METRICS
from antiphon.domain.items import AnyItem
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import TERMINAL, Failure
from antiphon.domain.sequencer import Sequencer
from antiphon.domain.usage import TurnUsage

logger = logging.getLogger("antiphon.runs")

MAX_EPOCHS = 4
"""A run that was leased more often, without any output, fails: it may be what kills the servers."""

T = TypeVar("T")

BUSY_DELAY_S = 1.0
"""The delay before a model that is busy, or not there, is asked again, unless it says when."""

MODEL_WAIT_S = 300.0
"""How long a run waits in its slot for a model that is not there: it keeps others from the slot."""

SERVER_RESTARTED = Failure(
    code="server_restarted", message="The server was stopped before the response was complete."
)


class RestoredRun(Struct, frozen=True, kw_only=True):
    """A run with the `events` that it has logged; `failure` says why it cannot start."""

    run: Run
    events: Sequence[Event] = ()
    failure: Failure | None = None


class RestoreRun:
    """Restores runs. A run can start again until readers may have seen output of its model.

    Its log continues with the next number, also if the run only ends.
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

    async def __call__(
        self,
        leased_run: LeasedRun,
        *,
        server: str,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> RestoredRun | None:
        """Return the run, or None if nothing is left to do. Raises: StoreError.

        `server` is the name of this one, which has leased the run.

        The run waits for its model until `is_stopping` returns True.
        """
        lease = leased_run.lease
        recorder = RunRecorder.resumed(
            leased_run.response.metrics, server=server, epoch=lease.epoch
        )
        request, charge, failure = await self._read_request(leased_run)
        sequencer, events = self._resume_sequencer(
            leased_run, request, await self._read_log(leased_run)
        )
        if sequencer.response.status in TERMINAL:  # the store has only logged the end
            await self._store.finish(lease, recorder.end(sequencer.response))
            return None
        if events is None or sequencer.has_output or lease.epoch > MAX_EPOCHS:
            failure = SERVER_RESTARTED
        run = Run(
            lease=lease,
            sequencer=sequencer,
            recorder=recorder,
            turns=LazyTurns(partial(self._start_turns, request, lease, recorder, is_stopping))
            if request
            else EmptyTurns(),
            journal=ForegroundJournal(self._log, lease, self._store, retry_s=self._retry_s)
            if events is None
            else DurableJournal(
                self._store, self._log, lease, retry_s=self._retry_s, recorder=recorder
            ),
            charge=charge,
            can_restart=failure is None,
            hide_reasoning=request is not None and request.include_reasoning is False,
            with_messages=request is not None and bool(request.enable_response_messages),
            with_metrics=request is not None and METRICS in (request.include or ()),
        )
        return RestoredRun(run=run, events=events or (), failure=failure)

    def _resume_sequencer(
        self, leased_run: LeasedRun, request: CreateResponse | None, events: Sequence[Event] | None
    ) -> tuple[Sequencer, Sequence[Event] | None]:
        """Return the sequencer after these events, and the events; or a new one, and None."""
        lease = leased_run.lease
        response = replace(leased_run.response, metrics=UNSET)  # the recorder has them
        if events is not None:
            try:
                resumed = self._make_sequencer.resume(response, events, request, lease.tenant)
            except EventOutOfOrder:
                logger.exception("response %s: its log cannot be continued", lease.response_id)
            else:
                return resumed, events
        sequencer = self._make_sequencer(response, request, lease.tenant)
        sequencer.open()
        sequencer.start()
        return sequencer, None

    async def _read_log(self, leased_run: LeasedRun) -> list[Event] | None:
        """Return the run's events, or None if the store has no log that can be continued."""
        lease = leased_run.lease
        try:
            return await log_of(self._store, lease.tenant, lease.response_id)
        except NotFound:
            return None
        except CorruptLog:
            logger.exception("response %s: its log cannot be continued", lease.response_id)
            return None

    async def _read_request(
        self, leased_run: LeasedRun
    ) -> tuple[CreateResponse | None, RunCharge | None, Failure | None]:
        """Return the request and its charge, or why the run cannot start."""
        if leased_run.job is None:
            return None, None, SERVER_RESTARTED
        try:
            request, charge = await self._jobs.request_of(leased_run.lease.tenant, leased_run.job)
        except RequestError as exc:
            logger.warning("response %s: %s", leased_run.lease.response_id, exc)
            return None, None, Failure(code="server_error", message=exc.message)
        return request, charge, None

    async def _start_turns(
        self,
        request: CreateResponse,
        lease: Lease,
        recorder: RunRecorder,
        is_stopping: Callable[[], bool],
    ) -> Turns:
        """Return the turns with the first one admitted.

        Raises: RequestError, EngineError; ServerShuttingDown if this server stops before.
        Waits while the model is busy, and for some minutes if it is not there, within the time that
        a response may run.
        """
        request = await self._expand_prompt(request)
        check_request(request)
        prepare = partial(
            self._prepare_turn,
            request,
            tenant=lease.tenant,
            trace_headers=recorder.trace_headers,
        )
        prepared = await _wait_for_model(lambda: retry(prepare, self._retry_s), is_stopping)
        turns = await self._plan_turns(
            request,
            prepared,
            tenant=lease.tenant,
            response_id=lease.response_id,
            recorder=recorder,
            epoch=lease.epoch,
        )
        await _wait_for_model(turns.start, is_stopping)
        return turns


async def _wait_for_model(work: Callable[[], Awaitable[T]], is_stopping: Callable[[], bool]) -> T:
    """Return the work's result, as soon as its model is there and has room for it.

    Raises: EngineDead if the model is not there in time; ServerShuttingDown.
    """
    loop = asyncio.get_running_loop()
    again_at, give_up_at = -math.inf, loop.time() + MODEL_WAIT_S
    while not is_stopping():
        try:
            if loop.time() >= again_at:
                return await work()
        except ModelBusy as error:
            again_at = loop.time() + (error.retry_after_s or 0)
        except TooManyRequests:
            pass
        except EngineDead:
            if loop.time() > give_up_at:
                raise
        await asyncio.sleep(BUSY_DELAY_S)
    raise ServerShuttingDown


class LazyTurns(RunTurns):
    """Turns that start when the run reads them."""

    def __init__(self, start: Callable[[], Awaitable[Turns]]) -> None:
        self._start = start

    async def iterate(
        self, output: Sequence[AnyItem], usages: Sequence[TurnUsage]
    ) -> AsyncGenerator[ModelTurn]:
        turns = await self._start()
        async with aclosing(turns.iterate(output, usages)) as started_turns:
            async for turn in started_turns:
                yield turn


class EmptyTurns(RunTurns):
    """No turns, for a run that only ends."""

    async def iterate(
        self, _output: Sequence[AnyItem], _usages: Sequence[TurnUsage]
    ) -> AsyncGenerator[ModelTurn]:
        return
        yield
