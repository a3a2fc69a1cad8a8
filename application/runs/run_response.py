"""Run one response: read the model's turns, convert deltas to events, write the journal, end.

In every case, the log gets exactly one terminal event, and the store has the final state before any
reader sees that event. If another server takes over the run, or this server gives it back, another
server writes the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from antiphon.application.input.items import to_stored_item
from antiphon.application.ports import (
    Clock,
    EndedRun,
    EventLog,
    Lease,
    ModelTurn,
    NewId,
    ReportRun,
    Seal,
    Store,
    StoredItem,
    WebhookDelivery,
)
from antiphon.application.progress.run_progress import RunProgress
from antiphon.application.resources.limits import EnforceLimits, RunCharge
from antiphon.application.runs.active_runs import LEASE_LOST, SHUTTING_DOWN
from antiphon.application.runs.diagnose_cache import Diagnosis
from antiphon.application.runs.journal import Journal
from antiphon.application.runs.logprob_budget import LogprobBudget
from antiphon.application.runs.resumed_log import ResumedLog
from antiphon.application.runs.running_usage import show_usage
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.retry import retry
from antiphon.application.support.tasks import run_to_completion
from antiphon.application.telemetry.log_context import REQUEST_ID, RESPONSE_ID
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.domain import deltas as d
from antiphon.domain.access.redaction import without_secrets_and_files
from antiphon.domain.errors import (
    AntiphonError,
    CannotResume,
    ConcurrencyLimitExceeded,
    EngineError,
    GuardFailed,
    LeaseLost,
    LimitExceeded,
    RequestError,
    RunDiverged,
    ServerOverloaded,
    ServerShuttingDown,
    StoreError,
)
from antiphon.domain.events import Event
from antiphon.domain.history import conversation as c
from antiphon.domain.items import AnyItem
from antiphon.domain.requests.request import CreateResponse, StreamOptions
from antiphon.domain.responses.guards import ResponseModeration
from antiphon.domain.responses.response import TERMINAL, Failure, Response
from antiphon.domain.responses.steering import STEERED, Steers
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.sequencer import Sequencer
from antiphon.domain.vocabulary.item import Agent

logger = logging.getLogger("antiphon.runs")

SERVER_STOPPED = Failure(
    code="server_error", message="The server was stopped before the response was complete."
)
SERVER_RESTARTED = Failure(
    code="server_restarted", message="The server was stopped before the response was complete."
)
NOT_STORED = Failure(code="server_error", message="The response could not be stored.")
ENDED_ELSEWHERE = Failure(
    code="server_error", message="The response was ended or deleted by another request."
)

BUSY = (LimitExceeded, ConcurrencyLimitExceeded, ServerOverloaded)
"""Errors that say nothing of the request: another time, it may succeed."""

INCOMPLETE_REASONS: Mapping[d.CutReason, str] = {
    "length": "max_output_tokens",
    "turns": "max_turns",
    "context": "max_context",
    "logprobs": "max_logprobs",
    "content_filter": "content_filter",
    "steered": STEERED,
}
"""The reason that ended a turn -> `incomplete_details.reason` (docs/decisions/0055)."""

OUT_OF_TIME = "max_time"
"""`incomplete_details.reason` of a response that ran too long."""

MakeDeliveries = Callable[[str, Response], Sequence[WebhookDelivery]]
"""(tenant, a background response that has ended) -> the webhooks to deliver."""


class MakeSequencer:
    """Makes sequencers with ids, a clock and, on request, encrypted reasoning."""

    def __init__(self, *, new_id: NewId, now: Clock, seal: Seal) -> None:
        self._new_id = new_id
        self._now = now
        self._seal = seal

    def __call__(
        self,
        response: Response,
        request: CreateResponse | None,
        tenant: str,
        progress: RunProgress | None = None,
        *,
        agent: str | None = None,
    ) -> Sequencer:
        """Return a new response's sequencer; `request` is None if it cannot be read.

        What it makes, ids and sealed texts, is recorded in the `progress`. `agent` is the name of
        the one whose response it is, if it may have sub-agents.
        """
        includes = request is not None and request.include
        new_id, seal = self._new_id, self._seal_of(includes, tenant) if includes else None
        if progress is not None:
            new_id = partial(progress.new_id, new_id)
            seal = None if seal is None else partial(progress.seal, seal)
        owner = None if agent is None else Agent(agent_name=agent)
        return Sequencer(response, new_id=new_id, now=self._now, seal=seal, agent=owner)

    def resume(
        self,
        response: Response,
        events: Sequence[Event],
        request: CreateResponse | None,
        tenant: str,
        progress: RunProgress | None = None,
        *,
        agent: str | None = None,
    ) -> Sequencer:
        """Return the sequencer as it was after `events`. Raises: EventOutOfOrder."""
        sequencer = self(response, request, tenant, progress, agent=agent)
        sequencer.restore(events)
        return sequencer

    def _seal_of(self, include: Sequence[str], tenant: str) -> Callable[[str], str] | None:
        if "reasoning.encrypted_content" not in include:
            return None
        return partial(self._seal, tenant)


class RunTurns(Protocol):
    """The turns of one response, read once. Reading them may raise."""

    def iterate(
        self, output: Sequence[AnyItem], usages: Sequence[TurnUsage], /
    ) -> AsyncGenerator[ModelTurn]: ...

    async def diagnose(self, turn: ModelTurn, /) -> Diagnosis | None:  # noqa: ARG002 - a default
        """Diagnose the prompt cache, if the turn is an answer; by default, nothing is known."""
        return None

    async def moderate(self, output: Sequence[AnyItem], /) -> ResponseModeration | None:  # noqa: ARG002 - a default
        """Return the moderation of the response; by default, nobody has asked for it."""
        return None

    def release(self) -> None:
        """Give back what the turns hold of the bytes in work: the response has ended."""


class Run(Struct, frozen=True, kw_only=True):
    """An accepted response and what its run needs.

    `input` holds the request's own items if they are stored. `charge` is what the run has reserved
    of its key's limits. `can_resume`: any server can go on with the run. `resumed_log` is the log
    of a run that another server has begun. `logprobs` is None if the client does not want any.
    `steers` is None if the client cannot steer the response. `is_diagnosed`: its first answer's
    prompt is compared with another response's. `is_moderated`: the request asks for moderation.
    `stream_options` are the request's.
    """

    lease: Lease
    input: Sequence[StoredItem] = ()
    sequencer: Sequencer
    turns: RunTurns
    recorder: RunRecorder
    journal: Journal
    charge: RunCharge | None = None
    can_resume: bool = False
    resumed_log: ResumedLog | None = None
    hide_reasoning: bool = False
    with_messages: bool = False
    with_metrics: bool = False
    logprobs: LogprobBudget | None = None
    steers: Steers | None = None
    is_diagnosed: bool = False
    is_moderated: bool = False
    stream_options: StreamOptions | None = None

    @property
    def id(self) -> str:
        return self.lease.response_id

    @property
    def tenant(self) -> str:
        return self.lease.tenant

    @property
    def is_over(self) -> bool:
        """Whether the response has a terminal state, which may not be stored yet."""
        return self.sequencer.response.status in TERMINAL


class RunResponse:
    """Runs a response to its end; cancelling the task that runs it cancels the response.

    `max_run_s` limits the run's time. `retry_s` limits the retries of adding the response's items
    to a conversation.
    """

    def __init__(
        self,
        log: EventLog,
        store: Store,
        limits: EnforceLimits,
        *,
        deliveries: MakeDeliveries = lambda _tenant, _response: (),
        log_outputs: bool = False,
        max_run_s: float = 3600,
        retry_s: float = 10,
        report: ReportRun | None = None,
    ) -> None:
        self._log = log
        self._store = store
        self._limits = limits
        self._compensation = Compensation()
        self._make_deliveries = deliveries
        self._log_outputs = log_outputs
        self._max_run_s = max_run_s
        self._retry_s = retry_s
        self._report_run = report

    async def __call__(self, run: Run) -> None:
        REQUEST_ID.set(run.recorder.request_id)
        RESPONSE_ID.set(run.id)
        run.recorder.start()
        if run.with_metrics:
            run.sequencer.metrics = run.recorder.snapshot
        ending: Coroutine[Any, Any, object]
        try:
            try:
                end = await self._run_turns(run)
            except LeaseLost:
                ending = self._give_up(run, run.sequencer.fail(ENDED_ELSEWHERE))
            except ServerShuttingDown:
                ending = self._give_back(run)
            else:
                ending = self.finish(run, end)
            # A cancellation must not leave a stored response without an end, or its conversation
            # locked. The end of another response matters only to the reader, who has left.
            response = run.sequencer.response
            must_be_stored = response.store or response.conversation is not None
            await (run_to_completion(ending) if must_be_stored else ending)
        finally:
            run.turns.release()

    async def finish(self, run: Run, end: Sequence[Event]) -> bool:
        """Store the run's end, then show readers the `end` events.

        Return False if that end is not stored.
        """
        if run.charge is not None:
            # Before readers see the end: the next request may depend on it.
            await self._settle(run, run.charge)
        ended = run.recorder.end(run.sequencer.response)
        if run.recorder.trace is not None and ended.store:
            await run.recorder.trace.save(run.lease, ended)
        try:
            has_lease = await self._store_end(run, ended, end)
        except Exception:  # whatever a store raises: readers wait for an end
            logger.exception("response %s could not be stored", run.id)
            await self._end_unstored(run, run.sequencer.revoke(end, NOT_STORED))
            run.recorder.end(run.sequencer.response)
            if self._report_run is not None:
                self._report(run, self._report_run)
            return False
        if not has_lease:
            await self._give_up(run, run.sequencer.revoke(end, ENDED_ELSEWHERE))
            return False
        if self._log_outputs:
            logger.info("response %s ended: %s", run.id, _to_log(run.sequencer.response))
        if not ended.store:
            await self._log.drop(run.id)
        if self._report_run is not None:
            self._report(run, self._report_run)
        return True

    async def _settle(self, run: Run, charge: RunCharge) -> None:
        """Settle what the run has reserved, also if it is cancelled meanwhile."""

        def settle() -> Coroutine[Any, Any, None]:
            return self._limits.settle(charge, run.tenant, run.id, run.sequencer.turns)

        try:
            await settle()
        except asyncio.CancelledError:  # nobody knows whether it was; a second time has no effect
            await run_to_completion(settle())

    def _report(self, run: Run, report: ReportRun) -> None:
        metrics = run.recorder.snapshot()
        report(EndedRun.of(run.tenant, run.sequencer.response, metrics))

    async def _run_turns(self, run: Run) -> list[Event]:
        """Run the turns and return the events that end the response.

        Raises: LeaseLost; ServerShuttingDown if another server can start the run again.
        """
        sequencer = run.sequencer
        limit = asyncio.timeout(self._max_run_s - run.recorder.running_s)
        try:
            if sequencer.response.status == "queued":
                await run.journal.append(sequencer.start())
            # A resumed run first repeats what is in its log.
            with run.resumed_log or nullcontext():
                async with limit:  # whatever takes the time: the engine, a tool or a slow reader
                    reason = await self._write_turns(run)
                    if run.is_moderated:
                        await self._moderate(run)
        except asyncio.CancelledError as exc:
            return self._end_cancelled(run, exc.args)
        except (LeaseLost, ServerShuttingDown):
            raise
        except StoreError:
            logger.exception("response %s could not be stored", run.id)
            return sequencer.fail(NOT_STORED)
        except (CannotResume, RunDiverged) as exc:
            logger.warning("response %s cannot be resumed: %s", run.id, exc)
            return sequencer.fail(SERVER_RESTARTED)
        except (EngineError, GuardFailed) as exc:
            logger.warning("response %s: %s", run.id, exc)
            return sequencer.fail(Failure(code="server_error", message=str(exc)))
        except RequestError as exc:  # from a turn that was admitted after the run started
            logger.warning("response %s: %s", run.id, exc)
            code = "rate_limit_exceeded" if isinstance(exc, BUSY) else "invalid_prompt"
            return sequencer.fail(Failure(code=code, message=exc.message))
        except Exception as exc:
            if limit.expired() and isinstance(exc, TimeoutError):
                return sequencer.end_incomplete(OUT_OF_TIME)
            logger.exception("response %s failed", run.id)
            return sequencer.fail(_failure_of(exc))
        if reason == "stop" or reason == "refused":
            return sequencer.complete()
        return sequencer.end_incomplete(INCOMPLETE_REASONS[reason])

    async def _moderate(self, run: Run) -> None:
        if (moderation := await run.turns.moderate(run.sequencer.output)) is not None:
            run.sequencer.show_moderation(moderation)

    async def _write_turns(self, run: Run) -> d.EndReason:
        """Write the events of all turns. Return why the last one ended."""
        sequencer, recorder = run.sequencer, run.recorder
        reason: d.EndReason = "stop"
        async with aclosing(run.turns.iterate(sequencer.output, sequencer.turns)) as turns:
            recorder.open_turn()
            async for turn in turns:
                recorder.admit_turn(turn)
                usage_count, item_count = len(sequencer.turns), len(sequencer.output)
                recorded_reason = ""
                try:
                    reason = recorded_reason = await self._write_turn(run, turn)
                finally:
                    if len(sequencer.turns) == usage_count:
                        sequencer.add_usage(turn.tokens_used())
                    recorder.close_turn(recorded_reason, sequencer.turns[usage_count:])
                    if recorder.trace is not None:
                        recorder.trace.close_turn(turn, recorded_reason)
                if reason == "stop":
                    turn.record_items(sequencer.output[item_count:])
                if run.with_messages:
                    sequencer.show_messages(*turn.messages())
                if run.is_diagnosed and not sequencer.is_diagnosed:
                    await self._diagnose(run, turn)
                if reason != "stop":
                    break
                recorder.open_turn()
        return reason

    async def _diagnose(self, run: Run, turn: ModelTurn) -> None:
        diagnosis = await run.turns.diagnose(turn)
        if diagnosis is not None:
            run.sequencer.show_cache_diagnostics(diagnosis.diagnostics)
            run.recorder.compare_prompts(diagnosis.comparison)

    async def _write_turn(self, run: Run, turn: ModelTurn) -> d.EndReason:
        """Write a turn's events, one batch for each engine step. Return why the turn ended."""
        reason: d.EndReason = "stop"
        feed, append = run.sequencer.feed, run.journal.append
        must_watch, trace = True, run.recorder.trace
        logprobs, steers = run.logprobs, run.steers
        first_item = len(run.sequencer.output)
        shows_usage = run.stream_options is not None and run.stream_options.continuous_usage_stats
        async with aclosing(aiter(turn)) as batches:
            async for deltas in batches:
                if must_watch:
                    must_watch = run.recorder.watch_batch(deltas)
                shown = _without_reasoning(deltas) if run.hide_reasoning else deltas
                must_stop = False
                if steers is not None and steers.are_waiting:
                    events, must_stop = run.sequencer.feed_to_boundary(shown, first_item)
                else:
                    events = (
                        feed(shown[0])
                        if len(shown) == 1
                        else [event for delta in shown for event in feed(delta)]
                    )
                if shows_usage:
                    show_usage(events, run.sequencer, turn, deltas)
                if trace is not None:
                    trace.add_batch(deltas, events[-1].sequence_number if events else -1)
                if events:
                    await append(events)
                if must_stop:
                    return "steered"
                if deltas and isinstance(deltas[-1], d.TurnEnd):
                    reason = deltas[-1].reason
                elif logprobs is not None and logprobs.is_spent_by(deltas):
                    return "logprobs"
        return reason

    async def _store_end(self, run: Run, response: Response, end: Sequence[Event]) -> bool:
        """Store the response's end, and add its items to its conversation."""
        if not response.store and response.conversation is not None:
            output = [to_stored_item(c.entry(item)) for item in response.output]
            items = [*run.input, *output] if response.keeps_items else []
            release = partial(
                self._store.release_conversation,
                run.tenant,
                response.conversation.id,
                run.id,
                items,
            )
            await retry(release, self._retry_s)  # a repetition has no effect: the claim is gone
        shown = run.sequencer.response
        # No client has asked for a sub-agent's response: the one above tells of its end.
        is_told = shown.background and not run.recorder.is_of_sub_agent
        deliveries = self._make_deliveries(run.tenant, shown) if is_told else ()
        return await run.journal.finish(response, end, deliveries)

    async def _end_unstored(self, run: Run, end: Sequence[Event]) -> None:
        """Show an end that is not stored.

        This server still owns the run, but the run is not active anymore. So WatchLeases gives it
        back, and a server ends it in the store.
        """
        # A run that can be resumed still needs the claim on its conversation.
        conversation = run.sequencer.response.conversation
        if conversation is not None and not run.can_resume:
            release = partial(self._store.release_conversation, run.tenant, conversation.id, run.id)
            log_message = f"conversation {conversation.id} stays locked by {run.id}"
            await self._compensation.run(release, log_message=log_message)
        await run.journal.give_up(end)

    async def _give_up(self, run: Run, end: Sequence[Event]) -> None:
        logger.warning("response %s: ended by another server, or deleted", run.id)
        await run.journal.give_up(end)

    def _end_cancelled(self, run: Run, reasons: Sequence[object]) -> list[Event]:
        """Return the events that end a cancelled run. Raises: LeaseLost, ServerShuttingDown."""
        if LEASE_LOST in reasons:
            raise LeaseLost(f"{run.id} lost its lease")
        if SHUTTING_DOWN not in reasons:
            return run.sequencer.cancel()
        if run.can_resume and self._store.outlives_server:
            raise ServerShuttingDown
        return run.sequencer.fail(SERVER_STOPPED)

    async def _give_back(self, run: Run) -> None:
        await run.journal.give_up(())
        try:
            await self._store.give_back_run(run.lease)
        except Exception:  # another server takes it over when this one seems dead
            logger.exception("response %s could not be given back", run.id)


def _without_reasoning(deltas: Sequence[d.Delta]) -> Sequence[d.Delta]:
    return [delta for delta in deltas if not isinstance(delta, d.ReasoningDelta | d.SummaryDelta)]


def _failure_of(exc: Exception) -> Failure:
    # Clients must not see the details of an internal error; they are in the log.
    is_expected = isinstance(exc, AntiphonError)
    message = str(exc) if is_expected else "The server had an error while it made the response."
    return Failure(code="server_error", message=message)


def _to_log(response: Response) -> str:
    shown = without_secrets_and_files(msgspec.json.decode(msgspec.json.encode(response)))
    return msgspec.json.encode(shown).decode()
