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

from antiphon.application.input.from_request import wants_logprobs
from antiphon.application.input.injections import Injections
from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.input.submission import Submission
from antiphon.application.ports import EventLog, Lease, LeasedRun, ModelTurn, Store
from antiphon.application.progress.run_progress import RunProgress
from antiphon.application.runs.diagnose_cache import Diagnosis
from antiphon.application.runs.jobs import Job, Jobs
from antiphon.application.runs.journal import DurableJournal, ForegroundJournal, Journal
from antiphon.application.runs.logprob_budget import LogprobBudget
from antiphon.application.runs.plan_turns import PlanTurns
from antiphon.application.runs.prepare_turn import PrepareTurn, prepare_guarded
from antiphon.application.runs.resumed_log import ResumedJournal, ResumedLog
from antiphon.application.runs.run_response import SERVER_RESTARTED, MakeSequencer, Run, RunTurns
from antiphon.application.runs.stored_events import StoredLog, read_log
from antiphon.application.runs.turns import Turns
from antiphon.application.support.retry import retry
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.telemetry.request_context import RequestContext
from antiphon.domain.access.callers import Caller
from antiphon.domain.errors import (
    CorruptLog,
    EngineDead,
    EventOutOfOrder,
    ModelBusy,
    NotFound,
    RequestError,
    ServerOverloaded,
    ServerShuttingDown,
)
from antiphon.domain.events import Event
from antiphon.domain.history.include_filter import METRICS
from antiphon.domain.items import AnyItem
from antiphon.domain.requests.checks import check_request
from antiphon.domain.responses.guards import ResponseModeration
from antiphon.domain.responses.response import TERMINAL, Failure
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.sequencer import Sequencer

logger = logging.getLogger("antiphon.runs")

MAX_ATTEMPTS = 12
"""A run that more servers have had fails: it may be what kills them."""

T = TypeVar("T")

BUSY_DELAY_S = 1.0
"""The delay before a model that is busy, or not there, is asked again, unless it says when."""

MODEL_WAIT_S = 300.0
"""The longest wait of a run in its slot for a model that is not there: others need the slot."""


class ResumeLimits(Struct, frozen=True, kw_only=True):
    """`max_attempts`: how many servers may run a response before it fails. `retry_s` limits the
    retries of writes and reads."""

    max_attempts: int = MAX_ATTEMPTS
    retry_s: float = 10


RESUME_LIMITS = ResumeLimits()


class RestoredRun(Struct, frozen=True, kw_only=True):
    """A run with the `events` that it has logged; `failure` says why it cannot start.

    `progress` is that of other servers.
    """

    run: Run
    events: Sequence[Event] = ()
    failure: Failure | None = None
    progress: RunProgress

    def cancel(self) -> list[Event]:
        """Return the events with which the run ends as cancelled."""
        self.run.sequencer.add_usage(self.progress.tokens_used())
        return self.run.sequencer.cancel()

    def fail(self, failure: Failure) -> list[Event]:
        """Return the events with which the run ends as failed."""
        self.run.sequencer.add_usage(self.progress.tokens_used())
        return self.run.sequencer.fail(failure)


class RestoreRun:
    """Restores runs, which go on where their servers died.

    Its log continues with the next number, also if the run only ends. `max_attempts` is how many
    servers may run a response before it fails.
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
        limits: ResumeLimits = RESUME_LIMITS,
    ) -> None:
        self._expand_prompt = expand_prompt
        self._prepare_turn = prepare_turn
        self._plan_turns = plan_turns
        self._jobs = jobs
        self._store = store
        self._log = log
        self._make_sequencer = make_sequencer
        self._retry_s = limits.retry_s
        self._max_attempts = limits.max_attempts

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
        job, failure = await self._read_job(leased_run)
        request = job.request if job else None
        log = await self._read_log(leased_run)
        progress = RunProgress(() if log is None else log.records)
        recorder = RunRecorder.resumed(
            leased_run.response.metrics, server=server, epoch=lease.epoch, progress=progress
        )
        if leased_run.response.preview is not UNSET:
            recorder.preview = leased_run.response.preview
        sequencer, events = self._resume_sequencer(leased_run, job, log, progress)
        if sequencer.response.status in TERMINAL:  # the store has only logged the end
            await self._store.finish_response(lease, recorder.end(sequencer.response))
            return None
        resumed_log = None if events is None else ResumedLog(sequencer, events, progress)
        if resumed_log is None or resumed_log.is_ending or lease.epoch > self._max_attempts:
            failure = SERVER_RESTARTED
        run = Run(
            lease=lease,
            sequencer=sequencer,
            recorder=recorder,
            turns=LazyTurns(partial(self._start_turns, job, lease, recorder, is_stopping))
            if job
            else EmptyTurns(),
            journal=self._make_journal(lease, recorder, resumed_log),
            charge=job.charge if job else None,
            can_resume=failure is None,
            resumed_log=resumed_log,
            hide_reasoning=request is not None and request.include_reasoning is False,
            with_messages=request is not None and bool(request.enable_response_messages),
            with_metrics=request is not None and METRICS in (request.include or ()),
            logprobs=LogprobBudget() if request is not None and wants_logprobs(request) else None,
            is_diagnosed=request is not None and request.comparison_response_id is not None,
            is_moderated=request is not None and request.moderation is not None,
            stream_options=None if request is None else request.stream_options,
        )
        return RestoredRun(run=run, events=events or (), failure=failure, progress=progress)

    def _make_journal(
        self, lease: Lease, recorder: RunRecorder, resumed_log: ResumedLog | None
    ) -> Journal:
        if resumed_log is None:
            return ForegroundJournal(self._log, lease, self._store, retry_s=self._retry_s)
        durable = DurableJournal(
            self._store, self._log, lease, retry_s=self._retry_s, recorder=recorder
        )
        return ResumedJournal(durable, resumed_log)

    def _resume_sequencer(
        self,
        leased_run: LeasedRun,
        job: Job | None,
        log: StoredLog | None,
        progress: RunProgress,
    ) -> tuple[Sequencer, Sequence[Event] | None]:
        """Return the sequencer after the log's events, and the events; or a new one, and None."""
        lease = leased_run.lease
        request, agent = (job.request, job.agent_name) if job else (None, None)
        response = replace(leased_run.response, metrics=UNSET, preview=UNSET)  # of the recorder
        if log is not None:
            try:
                resumed = self._make_sequencer.resume(
                    response, log.events, request, lease.tenant, progress, agent=agent
                )
            except EventOutOfOrder:
                logger.exception("response %s: its log cannot be continued", lease.response_id)
            else:
                return resumed, log.events
        sequencer = self._make_sequencer(response, request, lease.tenant, agent=agent)
        sequencer.open()
        sequencer.start()
        return sequencer, None

    async def _read_log(self, leased_run: LeasedRun) -> StoredLog | None:
        """Return the run's log, or None if the store has none that can be continued."""
        lease = leased_run.lease
        try:
            return await read_log(self._store, lease.tenant, lease.response_id)
        except NotFound:
            return None
        except CorruptLog:
            logger.exception("response %s: its log cannot be continued", lease.response_id)
            return None

    async def _read_job(self, leased_run: LeasedRun) -> tuple[Job | None, Failure | None]:
        """Return the run's job, or why it cannot start."""
        if leased_run.job is None:
            return None, SERVER_RESTARTED
        try:
            return await self._jobs.read(leased_run.lease.tenant, leased_run.job), None
        except RequestError as exc:
            logger.warning("response %s: %s", leased_run.lease.response_id, exc)
            return None, Failure(code="server_error", message=exc.message)

    async def _start_turns(
        self,
        job: Job,
        lease: Lease,
        recorder: RunRecorder,
        is_stopping: Callable[[], bool],
    ) -> Turns:
        """Return the turns with the first one admitted.

        Raises: RequestError, EngineError; ServerShuttingDown if this server stops before.
        Waits while the model is busy, and for some minutes if it is not there, within the time that
        a response may run.
        """
        request = await self._expand_prompt(job.request)
        check_request(request)
        submission = Submission(
            caller=Caller(
                tenant=lease.tenant,
                key_id="" if job.charge is None else job.charge.key_id,
                policy=job.policy,
            ),
            request=request,
            response_id=lease.response_id,
            context=RequestContext(trace_headers=recorder.trace_headers),
            agent=job.agent,
            may_have_agents=True,  # the server that took the request has asked
            injections=Injections(max_bytes=0, has_client=False) if job.takes_outputs else None,
        )
        guards = self._plan_turns.open_guards(submission, recorder)
        prepare = partial(prepare_guarded, self._prepare_turn, submission, guards)
        submission, prepared = await _wait_for_model(
            lambda: retry(prepare, self._retry_s), is_stopping
        )
        turns = await self._plan_turns(
            submission, prepared, recorder, guards=guards, epoch=lease.epoch
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
        except ServerOverloaded:
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
        self._turns: Turns | None = None

    async def iterate(
        self, output: Sequence[AnyItem], usages: Sequence[TurnUsage]
    ) -> AsyncGenerator[ModelTurn]:
        turns = self._turns = await self._start()
        async with aclosing(turns.iterate(output, usages)) as started_turns:
            async for turn in started_turns:
                yield turn

    async def diagnose(self, turn: ModelTurn) -> Diagnosis | None:
        return None if self._turns is None else await self._turns.diagnose(turn)

    async def moderate(self, output: Sequence[AnyItem]) -> ResponseModeration | None:
        return None if self._turns is None else await self._turns.moderate(output)

    def release(self) -> None:
        if self._turns is not None:
            self._turns.release()


class EmptyTurns(RunTurns):
    """No turns, for a run that only ends."""

    async def iterate(
        self, _output: Sequence[AnyItem], _usages: Sequence[TurnUsage]
    ) -> AsyncGenerator[ModelTurn]:
        return
        yield

    def release(self) -> None:
        pass
