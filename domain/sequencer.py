"""The sequencer: deltas in, numbered events out, and the Response that grows with them.

It is pure: ids, the time and the seal of reasoning come in as callables. The final Response is
what it accumulated; nothing rebuilds it, so a stream, the returned object and a later read cannot
disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.builders import BUILDERS, Builder, BuilderContext, RestoredItem
from antiphon.domain.errors import EventOutOfOrder
from antiphon.domain.items import AnyItem
from antiphon.domain.json import Json
from antiphon.domain.lifecycle import State, advance
from antiphon.domain.response import Failure, IncompleteDetails, Response
from antiphon.domain.usage import TurnUsage, per_turn, total


class Sequencer:
    """One a response. Call `start` first, `feed` for each delta, then one of the four ends."""

    def __init__(
        self,
        response: Response,
        *,
        new_id: Callable[[str], str],
        now: Callable[[], float],
        seal: Callable[[str], str] | None = None,
    ) -> None:
        self.response = response
        self._new_id = new_id
        self._now = now
        self._seal = seal
        self._state = State.START
        self._next_number = 0
        self._output: list[AnyItem] = []
        self._turns: list[TurnUsage] = []
        self._open: Builder | None = None

    @classmethod
    def resumed(
        cls,
        response: Response,
        events: Sequence[e.Event],
        *,
        new_id: Callable[[str], str],
        now: Callable[[], float],
        seal: Callable[[str], str] | None = None,
    ) -> Sequencer:
        """Return the sequencer of a run of which these events, its first, were logged.

        It ends the run with the events that close what is open, under the next numbers; where
        nothing is open it goes on. `response` is as it was created. What tokens earlier turns took
        is not in a log: the usage of a run that is ended like this is null.
        Raises: EventOutOfOrder where these are not the first events of a run.
        """
        resumed = cls(response, new_id=new_id, now=now, seal=seal)
        opened: int | None = None
        for index, event in enumerate(events):
            resumed._state = advance(resumed._state, event)
            if isinstance(event, e.ItemAdded):
                opened = index
            elif isinstance(event, e.ItemDone):
                opened = None
                resumed._output.append(event.item)
            elif isinstance(event, e.RESPONSE_EVENTS):
                resumed.response = event.response
        if opened is not None:
            resumed._open = RestoredItem(events[opened:], seal)
        resumed._next_number = len(events)
        return resumed

    @property
    def output(self) -> Sequence[AnyItem]:
        """The items that are done, in order."""
        return self._output

    @property
    def turns(self) -> Sequence[TurnUsage]:
        return self._turns

    @property
    def has_output(self) -> bool:
        """Whether anything was shown of what the model did."""
        return bool(self._output) or self._open is not None

    def open(self) -> list[e.Event]:
        """Return `created`, and `queued` where the response waits for a worker."""
        events: list[e.Event] = [e.Created(response=self.response)]
        if self.response.status == "queued":
            events.append(e.Queued(response=self.response))
        return self._number(events)

    def start(self) -> list[e.Event]:
        """Return `in_progress`: the first turn is about to run."""
        self.response = replace(self.response, status="in_progress")
        return self._number([e.InProgress(response=self.response)])

    def feed(self, delta: d.Delta) -> list[e.Event]:
        """Return what the client sees of this delta."""
        if self._open is not None and self._open.accepts(delta):
            return self._number(self._open.add(delta))
        if isinstance(delta, d.ItemEnd):
            return self._number(self._close("completed"))
        if isinstance(delta, d.TurnEnd):
            self._turns += (delta.usage, *delta.other_usages)
            return self._number(
                self._close("completed" if delta.reason == "stop" else "incomplete")
            )
        if type(delta) not in BUILDERS:
            return []  # progress or end of a tool item that is over already
        closing = self._close("completed")
        seed = BuilderContext(len(self._output), self._new_id, self._seal)
        self._open = BUILDERS[type(delta)](delta, seed)
        return self._number([*closing, *self._open.open(), *self._open.add(delta)])

    def add_usage(self, usages: Sequence[TurnUsage]) -> None:
        """Count the tokens of a turn that has no TurnEnd, because it was left."""
        self._turns += usages

    def complete(self) -> list[e.Event]:
        events = self._close("completed")
        done = self._end("completed", completed_at=int(self._now()))
        return self._number([*events, e.Completed(response=done)])

    def end_incomplete(self, reason: str) -> list[e.Event]:
        """End as incomplete; `reason` is one of
        docs/reference/errors.md#incomplete-responses (`max_output_tokens`…)."""
        events = self._close("incomplete")
        done = self._end("incomplete", incomplete_details=IncompleteDetails(reason=reason))
        return self._number([*events, e.Incomplete(response=done)])

    def fail(self, failure: Failure) -> list[e.Event]:
        """End as failed; this works also after a defect of ours left an item half written."""
        whole = len(self._output)
        try:
            closing = self._number(self._close("incomplete"))
        except EventOutOfOrder:
            del self._output[whole:]
            closing, self._state = [], State.RUNNING
        return [*closing, *self._fail(failure)]

    def revoke(self, end: Sequence[e.Event], failure: Failure) -> list[e.Event]:
        """Return `end` with its terminal event, which nobody saw yet, replaced by a failure."""
        count = 2 if isinstance(end[-1], e.Failed) else 1  # its Error goes with it
        self._next_number -= count
        self._state = State.RUNNING
        self.response = replace(
            self.response, completed_at=None, incomplete_details=None, error=None
        )
        return [*end[:-count], *self._fail(failure)]

    def _fail(self, failure: Failure) -> list[e.Event]:
        told = self._state is State.ERROR  # of a log that ends there
        error = () if told else (e.Error(code=failure.code, message=failure.message),)
        return self._number([*error, e.Failed(response=self._end("failed", error=failure))])

    def show_messages(self, given: Sequence[Json], written: Sequence[Json]) -> None:
        """Show the format's own messages in the Response (`enable_response_messages`)."""
        self.response = replace(
            self.response, input_messages=tuple(given), output_messages=tuple(written)
        )

    def cancel(self) -> list[e.Event]:
        """End as cancelled; the spec has no event for that but `incomplete`
        (docs/reference/events.md#order)."""
        events = self._close("incomplete")
        return self._number([*events, e.Incomplete(response=self._end("cancelled"))])

    def _close(self, status: str) -> Sequence[e.Event]:
        if self._open is None:
            return ()
        events = self._open.close(status)
        self._output.append(self._open.item)
        self._open = None
        return events

    def _end(self, status: str, **changes: object) -> Response:
        shown = self.response.input_messages is not UNSET
        each = per_turn(self._turns)
        self.response = replace(
            self.response,
            status=status,
            output=tuple(self._output),
            usage=total(self._turns, list_turns=shown) if self._turns else None,
            usage_per_turn=each if shown or len(each) > 1 else UNSET,
            **changes,
        )
        return self.response

    def _number(self, events: Sequence[e.Event]) -> list[e.Event]:
        # All events get their number here, and pass the lifecycle here, or none of them does. The
        # one place that writes to an event: it is still ours alone.
        state, number = self._state, self._next_number
        for event in events:
            state = advance(state, event)
            force_setattr(event, "sequence_number", number)
            number += 1
        self._state, self._next_number = state, number
        return list(events)
