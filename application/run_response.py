"""The run of one response: turns of the model, deltas to events, events to the log, and the end.

Whatever happens, the log gets exactly one terminal event, and the store has the final state before
any reader sees that event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import Struct

from antiphon.application.hold_conversation import free
from antiphon.application.ports import EventLog, ResponseStore, StoredItem
from antiphon.application.read_items import as_it_is
from antiphon.application.runs import SERVER_STOPS, to_the_end
from antiphon.application.turns import Turns
from antiphon.domain import conversation as c
from antiphon.domain import deltas as d
from antiphon.domain.errors import AntiphonError, EngineError, RequestError
from antiphon.domain.events import Event
from antiphon.domain.response import TERMINAL, Failure
from antiphon.domain.sequencer import Sequencer

logger = logging.getLogger("antiphon.runs")

STOPPED = Failure(
    code="server_error", message="The server was stopped before the response was complete."
)


class Run(Struct, frozen=True, kw_only=True):
    """A response that was accepted, with its first turn admitted by the engine.

    `input` is what its request brought, where that is kept.
    """

    tenant: str
    input: Sequence[StoredItem] = ()
    sequencer: Sequencer
    turns: Turns
    hide_reasoning: bool = False
    with_messages: bool = False

    @property
    def id(self) -> str:
        return self.sequencer.response.id

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
    def leaves_something(self) -> bool:
        return self.stored or self.conversation_id is not None


class RunResponse:
    """Runs a response to its end; cancelling the task that runs it cancels the response."""

    def __init__(self, log: EventLog, store: ResponseStore, *, log_outputs: bool = False) -> None:
        self._log = log
        self._store = store
        self._log_outputs = log_outputs

    async def __call__(self, run: Run) -> None:
        end = await self._turns(run)
        # Being cancelled must not leave a stored response without an end, nor its conversation
        # locked. Nobody but the reader who left misses the end of another.
        finish = self._finish(run, end)
        await (to_the_end(finish) if run.leaves_something else finish)

    async def _turns(self, run: Run) -> list[Event]:
        """Run the turns and return the events that end the response."""
        sequencer, reason = run.sequencer, "stop"
        try:
            async with aclosing(run.turns.each(sequencer.output, sequencer.turns)) as turns:
                async for turn in turns:
                    reason = await self._turn(run, aclosing(aiter(turn)))
                    if run.with_messages:
                        sequencer.show_messages(*turn.messages())
                    if reason != "stop":
                        break
        except asyncio.CancelledError as exc:
            return sequencer.fail(STOPPED) if SERVER_STOPS in exc.args else sequencer.cancel()
        except EngineError as exc:
            logger.warning("response %s: %s", run.id, exc)
            return sequencer.fail(Failure(code="server_error", message=str(exc)))
        except RequestError as exc:  # of a later turn: the first has been admitted
            logger.warning("response %s: %s", run.id, exc)
            return sequencer.fail(Failure(code="invalid_prompt", message=exc.message))
        except Exception as exc:
            logger.exception("response %s failed", run.id)
            return sequencer.fail(_failure(exc))
        return sequencer.complete() if reason == "stop" else sequencer.cut("max_output_tokens")

    async def _turn(self, run: Run, turn: aclosing[AsyncGenerator[list[d.Delta]]]) -> str:
        """Log a turn's events, one append an engine step. Returns why the turn ended."""
        feed, append, response_id = run.sequencer.feed, self._log.append, run.id
        hidden = (d.ReasoningDelta, d.SummaryDelta) if run.hide_reasoning else ()
        reason = "stop"
        async with turn as batches:
            async for deltas in batches:
                events: list[Event] = []
                for delta in deltas:
                    if not isinstance(delta, hidden):
                        events += feed(delta)
                if events:
                    await append(response_id, events)
                if deltas and isinstance(deltas[-1], d.TurnEnd):
                    reason = deltas[-1].reason
        return reason

    async def _keep(self, run: Run) -> None:
        """Give the store the response's end, and its conversation what it leaves there."""
        response = run.sequencer.response
        if run.stored:
            await self._store.finish(run.tenant, response)
        elif run.conversation_id is not None:
            made = [as_it_is(c.entry(item)) for item in response.output]
            left = [*run.input, *made] if response.leaves_items else []
            await self._store.release(run.tenant, run.conversation_id, run.id, left)

    async def _finish(self, run: Run, end: Sequence[Event]) -> None:
        try:
            await self._keep(run)
        except Exception:  # whatever a store raises: readers wait for an end
            logger.exception("response %s could not be stored", run.id)
            message = "The response could not be stored."
            end = run.sequencer.revoke(end, Failure(code="server_error", message=message))
            if run.conversation_id is not None:
                await free(self._store, run.tenant, run.conversation_id, run.id)
        if self._log_outputs:
            logger.info("response %s ended: %r", run.id, run.sequencer.response)
        await self._log.append(run.id, end)
        if not run.stored:
            await self._log.drop(run.id)


def _failure(exc: Exception) -> Failure:
    # What broke inside us is for our log; the client learns that it was not its fault.
    known = isinstance(exc, AntiphonError)
    message = str(exc) if known else "The server had an error while it made the response."
    return Failure(code="server_error", message=message)
