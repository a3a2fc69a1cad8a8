"""The run of one response: turns of the model, deltas to events, events to the journal, and the
end.

Whatever happens, the log gets exactly one terminal event, and the store has the final state before
any reader sees that event. A run that was lost to another server, or given back to all of them,
gets its end there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from antiphon.application.input.items import to_stored_item
from antiphon.application.ports import (
    EventLog,
    Lease,
    ModelTurn,
    Store,
    StoredItem,
    WebhookDelivery,
)
from antiphon.application.runs.active_runs import LEASE_LOST, SERVER_STOPS
from antiphon.application.runs.journal import Journal
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.retry import retry
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain import conversation as c
from antiphon.domain import deltas as d
from antiphon.domain.errors import (
    AntiphonError,
    EngineError,
    LeaseLost,
    RequestError,
    ServerShuttingDown,
    StoreError,
)
from antiphon.domain.events import Event
from antiphon.domain.items import AnyItem
from antiphon.domain.response import TERMINAL, Failure, Response
from antiphon.domain.sequencer import Sequencer
from antiphon.domain.usage import TurnUsage

logger = logging.getLogger("antiphon.runs")

STOPPED = Failure(
    code="server_error", message="The server was stopped before the response was complete."
)
NOT_KEPT = Failure(code="server_error", message="The response could not be stored.")
NOT_OURS = Failure(
    code="server_error", message="The response was ended or deleted by another request."
)

CUT_BY = {"length": "max_output_tokens", "turns": "max_turns", "context": "max_context"}
OUT_OF_TIME = "max_time"
"""Why a response is incomplete, as `incomplete_details.reason` says it (docs/decisions/0055)."""

MakeDeliveries = Callable[[str, Response], Sequence[WebhookDelivery]]
"""(tenant, a response in the background that is over) -> the webhooks to deliver."""


class RunTurns(Protocol):
    """The turns of one response, read once. What can still be wrong is raised meanwhile."""

    def iterate(
        self, output: Sequence[AnyItem], usages: Sequence[TurnUsage], /
    ) -> AsyncGenerator[ModelTurn]: ...


class Run(Struct, frozen=True, kw_only=True):
    """A response that was accepted.

    `input` is what its request brought, where that is kept. `can_restart`: any server could begin
    it again, as long as nothing of it was shown.
    """

    lease: Lease
    input: Sequence[StoredItem] = ()
    sequencer: Sequencer
    turns: RunTurns
    journal: Journal
    can_restart: bool = False
    hide_reasoning: bool = False
    with_messages: bool = False

    @property
    def id(self) -> str:
        return self.lease.response_id

    @property
    def tenant(self) -> str:
        return self.lease.tenant

    @property
    def is_over(self) -> bool:
        """Whether its end is certain, and only has to be kept and told."""
        return self.sequencer.response.status in TERMINAL

    @property
    def stored(self) -> bool:
        return self.sequencer.response.store

    @property
    def conversation_id(self) -> str | None:
        conversation = self.sequencer.response.conversation
        return conversation.id if conversation else None

    @property
    def leaves_traces(self) -> bool:
        return self.stored or self.conversation_id is not None


class RunResponse:
    """Runs a response to its end; cancelling the task that runs it cancels the response.

    `max_run_s` is how long it may run. `retry_s` is how long a store that fails is asked again
    to take what is left in a conversation.
    """

    def __init__(
        self,
        log: EventLog,
        store: Store,
        *,
        deliveries: MakeDeliveries = lambda _tenant, _response: (),
        log_outputs: bool = False,
        max_run_s: float = 3600,
        retry_s: float = 10,
    ) -> None:
        self._log = log
        self._store = store
        self._compensation = Compensation()
        self._notices = deliveries
        self._log_outputs = log_outputs
        self._most_s = max_run_s
        self._retry_s = retry_s

    async def __call__(self, run: Run) -> None:
        ending: Coroutine[Any, Any, object]
        try:
            end = await self._turns(run)
        except LeaseLost:
            ending = self._lose(run, run.sequencer.fail(NOT_OURS))
        except ServerShuttingDown:
            ending = self._give_back(run)
        else:
            ending = self.finish(run, end)
        # Being cancelled must not leave a stored response without an end, nor its conversation
        # locked. Nobody but the reader who left misses the end of another.
        await (run_to_completion(ending) if run.leaves_traces else ending)

    async def finish(self, run: Run, end: Sequence[Event]) -> bool:
        """Keep the run's end, then show these events of it. False if that end is not kept."""
        try:
            is_ours = await self._keep(run, end)
        except Exception:  # whatever a store raises: readers wait for an end
            logger.exception("response %s could not be stored", run.id)
            await self._fail(run, run.sequencer.revoke(end, NOT_KEPT))
            return False
        if not is_ours:
            await self._lose(run, run.sequencer.revoke(end, NOT_OURS))
            return False
        if self._log_outputs:
            logger.info("response %s ended: %r", run.id, run.sequencer.response)
        if not run.stored:
            await self._log.drop(run.id)
        return True

    async def _turns(self, run: Run) -> list[Event]:
        """Run the turns and return the events that end the response.

        Raises: LeaseLost; ServerShuttingDown where another server can begin anew.
        """
        sequencer, limit = run.sequencer, asyncio.timeout(self._most_s)
        try:
            if sequencer.response.status == "queued":
                await run.journal.append(sequencer.start())
            async with limit:  # whatever takes the time: the engine, a tool, who reads too slowly
                reason = await self._each(run)
        except asyncio.CancelledError as exc:
            return _stopped(run, exc.args)
        except LeaseLost:
            raise
        except StoreError:
            logger.exception("response %s could not be stored", run.id)
            return sequencer.fail(NOT_KEPT)
        except EngineError as exc:
            logger.warning("response %s: %s", run.id, exc)
            return sequencer.fail(Failure(code="server_error", message=str(exc)))
        except RequestError as exc:  # of a turn that was not admitted before the run began
            logger.warning("response %s: %s", run.id, exc)
            return sequencer.fail(Failure(code="invalid_prompt", message=exc.message))
        except Exception as exc:
            if limit.expired() and isinstance(exc, TimeoutError):
                return sequencer.end_incomplete(OUT_OF_TIME)
            logger.exception("response %s failed", run.id)
            return sequencer.fail(_failure(exc))
        return (
            sequencer.complete() if reason == "stop" else sequencer.end_incomplete(CUT_BY[reason])
        )

    async def _each(self, run: Run) -> str:
        """Write the events of all turns. Returns why the last one ended."""
        sequencer, reason = run.sequencer, "stop"
        async with aclosing(run.turns.iterate(sequencer.output, sequencer.turns)) as turns:
            async for turn in turns:
                told, before = len(sequencer.turns), len(sequencer.output)
                try:
                    reason = await self._turn(run, aclosing(aiter(turn)))
                finally:
                    if len(sequencer.turns) == told:
                        sequencer.add_usage(turn.tokens_used())
                if reason == "stop":
                    turn.record_items(sequencer.output[before:])
                if run.with_messages:
                    sequencer.show_messages(*turn.messages())
                if reason != "stop":
                    break
        return reason

    async def _turn(self, run: Run, turn: aclosing[AsyncGenerator[list[d.Delta]]]) -> str:
        """Write a turn's events, all of an engine step at once. Returns why the turn ended."""
        feed, append = run.sequencer.feed, run.journal.append
        hidden = (d.ReasoningDelta, d.SummaryDelta) if run.hide_reasoning else ()
        reason = "stop"
        async with turn as batches:
            async for deltas in batches:
                events: list[Event] = []
                for delta in deltas:
                    if not isinstance(delta, hidden):
                        events += feed(delta)
                if events:
                    await append(events)
                if deltas and isinstance(deltas[-1], d.TurnEnd):
                    reason = deltas[-1].reason
        return reason

    async def _keep(self, run: Run, end: Sequence[Event]) -> bool:
        """Keep the response's end, and in its conversation what it leaves there."""
        response = run.sequencer.response
        if not run.stored and run.conversation_id is not None:
            made = [to_stored_item(c.entry(item)) for item in response.output]
            left = [*run.input, *made] if response.keeps_items else []
            release = partial(self._store.release, run.tenant, run.conversation_id, run.id, left)
            await retry(release, self._retry_s)  # what was heard is not done again: the claim went
        deliveries = self._notices(run.tenant, response) if response.background else ()
        return await run.journal.finish(response, end, deliveries)

    async def _fail(self, run: Run, end: Sequence[Event]) -> None:
        """Show an end that is not kept: the run stays ours, and is at work nowhere, so that whoever
        looks after such runs ends it in the store.
        """
        # What may be begun again goes on with its conversation as it was.
        if run.conversation_id is not None and not run.can_restart:
            release = partial(self._store.release, run.tenant, run.conversation_id, run.id)
            log_message = f"conversation {run.conversation_id} stays locked by {run.id}"
            await self._compensation.run(release, log_message=log_message)
        await run.journal.give_up(end)

    async def _lose(self, run: Run, end: Sequence[Event]) -> None:
        logger.warning("response %s: ended by another server, or deleted", run.id)
        await run.journal.give_up(end)

    async def _give_back(self, run: Run) -> None:
        await run.journal.give_up(())
        try:
            await self._store.give_back(run.lease)
        except Exception:  # then it waits until this server is known to be gone
            logger.exception("response %s could not be given back", run.id)


def _stopped(run: Run, reasons: Sequence[object]) -> list[Event]:
    """Return how a run ends that was cancelled. Raises: LeaseLost, ServerShuttingDown."""
    if LEASE_LOST in reasons:
        raise LeaseLost(f"{run.id} is not run here any more")
    if SERVER_STOPS not in reasons:
        return run.sequencer.cancel()
    if run.can_restart and not run.sequencer.has_output:
        raise ServerShuttingDown
    return run.sequencer.fail(STOPPED)


def _failure(exc: Exception) -> Failure:
    # What broke inside us is for our log; the client learns that it was not its fault.
    known = isinstance(exc, AntiphonError)
    message = str(exc) if known else "The server had an error while it made the response."
    return Failure(code="server_error", message=message)
