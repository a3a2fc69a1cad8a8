"""The sequencer: turn deltas into numbered events, and accumulate the Response from them.

It is pure: ids, the time and the sealing of reasoning are passed in as callables. The final
Response is what the sequencer accumulated and is never rebuilt, so a stream, the returned object
and a later read cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.builders import BUILDERS, Builder, BuilderContext, RestoredItem
from antiphon.domain.errors import EventOutOfOrder
from antiphon.domain.items import AnyItem, may_end_after
from antiphon.domain.json import Json
from antiphon.domain.lifecycle import ERROR, RUNNING, START, advance
from antiphon.domain.responses.cache_diagnostics import CacheDiagnostics
from antiphon.domain.responses.guards import ResponseModeration
from antiphon.domain.responses.metrics import ResponseMetrics
from antiphon.domain.responses.response import Failure, IncompleteDetails, Response
from antiphon.domain.responses.usage import TurnUsage, per_turn, total
from antiphon.domain.vocabulary.item import Agent


class Sequencer:
    """Sequences the events of one response.

    Call `open` and `start`, then `feed` for each delta, then one of `complete`, `end_incomplete`,
    `fail` and `cancel`.
    """

    def __init__(
        self,
        response: Response,
        *,
        new_id: Callable[[str], str],
        now: Callable[[], float],
        seal: Callable[[str], str] | None = None,
        agent: Agent | None = None,
    ) -> None:
        self.response = response
        self._agent = agent
        self._new_id = new_id
        self._now = now
        self._seal = seal
        self._state = START
        self._next_number = 0
        self.output: list[AnyItem] = []
        """The items that are done, in order."""
        self.turns: list[TurnUsage] = []
        self.agent_turns: list[TurnUsage] = []
        """The usage of sub-agents: the Response counts it, and their own runs are charged."""
        self._open: Builder | None = None
        self._stop_string: str | None = None
        """The one that ended the last turn."""
        self.metrics: Callable[[], ResponseMetrics] | None = None
        """Returns what the ended Response shows as its `metrics`, if the client wants to see it."""

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
        """Return a sequencer that continues after `events`, the logged beginning of a run.

        An open item can only be closed; without one, the run can go on. Numbers continue where
        the log ends. `response` is the response as it was created. The log does not hold the token
        counts of earlier turns: `add_usage` adds them to a run that ends without another turn.
        Raises: EventOutOfOrder if `events` are not the beginning of a run.
        """
        sequencer = cls(response, new_id=new_id, now=now, seal=seal)
        sequencer.restore(events)
        return sequencer

    def restore(self, events: Sequence[e.Event]) -> None:
        """Go to the state after `events`, wherever this sequencer is; see `resumed`."""
        self._state, self._open, self._stop_string = START, None, None
        self.output.clear()
        self.turns.clear()
        self.agent_turns.clear()
        open_index: int | None = None
        for index, event in enumerate(events):
            self._state = advance(self._state, event)
            if isinstance(event, e.ItemAdded):
                open_index = index
            elif isinstance(event, e.ItemDone):
                open_index = None
                self.output.append(event.item)
            elif isinstance(event, e.RESPONSE_EVENTS):
                self.response = event.response
        if open_index is not None:
            self._open = RestoredItem(events[open_index:], self._seal)
        self._next_number = len(events)

    @property
    def has_output(self) -> bool:
        """Whether any output item was started."""
        return bool(self.output) or self._open is not None

    def open(self) -> list[e.Event]:
        """Return `created`, then `queued` if the response waits for a worker."""
        events: list[e.Event] = [e.Created(response=self.response)]
        if self.response.status == "queued":
            events.append(e.Queued(response=self.response))
        return self._number(events)

    def start(self) -> list[e.Event]:
        """Return `in_progress`: the first turn is about to run."""
        self.response = replace(self.response, status="in_progress")
        return self._number([e.InProgress(response=self.response)])

    def feed(self, delta: d.Delta) -> list[e.Event]:
        """Return the events that a delta causes."""
        if self._open is not None and self._open.accepts(delta):
            return self._number(self._open.add(delta))
        if isinstance(delta, d.ItemEnd):
            return self._number(self._close("completed"))
        if isinstance(delta, d.TurnEnd):
            self.turns += (delta.usage, *delta.other_usages)
            self._stop_string = delta.stop_string
            return self._number(
                self._close("completed" if delta.reason in d.COMPLETE else "incomplete")
            )
        if isinstance(delta, d.AgentUpdate):
            if delta.used is not None:
                self.agent_turns.append(delta.used)
            if not delta.events:
                return []
        if type(delta) not in BUILDERS:
            return []  # the progress or end of a tool item that was already closed
        closing = self._close("completed")
        context = BuilderContext(
            len(self.output),
            self._new_id,
            e.ItemAdded,
            e.ItemDone,
            self._seal,
            self.response.created_at,
            self._agent,
        )
        self._open = BUILDERS[type(delta)](delta, context)
        return self._number([*closing, *self._open.open(), *self._open.add(delta)])

    def feed_to_boundary(
        self, deltas: Sequence[d.Delta], first_item: int
    ) -> tuple[list[e.Event], bool]:
        """Feed the deltas up to where their turn may stop before its end; return whether it stops.

        It stops before an item begins, if nobody need act after the items that it has: those from
        `first_item` of the output on.
        """
        events: list[e.Event] = []
        for delta in deltas:
            if self._begins_item(delta):
                events += self._number(self._close("completed"))
                if all(map(may_end_after, self.output[first_item:])):
                    return events, True
            events += self.feed(delta)
        return events, False

    def _begins_item(self, delta: d.Delta) -> bool:
        continues = self._open is not None and self._open.accepts(delta)
        return not continues and type(delta) in BUILDERS

    def add_usage(self, usages: Sequence[TurnUsage]) -> None:
        """Count the tokens of a turn that was abandoned and so has no TurnEnd."""
        self.turns += usages

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
        """End as failed; this also works after a bug left an item half written."""
        completed_items = len(self.output)
        try:
            closing = self._number(self._close("incomplete"))
        except EventOutOfOrder:
            del self.output[completed_items:]
            closing, self._state = [], RUNNING
        return [*closing, *self._fail(failure)]

    def revoke(self, end: Sequence[e.Event], failure: Failure) -> list[e.Event]:
        """Return `end` with a failure in place of its terminal event, which no reader has seen."""
        count = 2 if isinstance(end[-1], e.Failed) else 1  # Failed has an Error before it
        self._next_number -= count
        self._state = RUNNING
        self.response = replace(
            self.response, completed_at=None, incomplete_details=None, error=None
        )
        return [*end[:-count], *self._fail(failure)]

    def _fail(self, failure: Failure) -> list[e.Event]:
        has_error = self._state == ERROR  # a restored log may end with its Error event
        error = () if has_error else (e.Error(code=failure.code, message=failure.message),)
        return self._number([*error, e.Failed(response=self._end("failed", error=failure))])

    def show_messages(
        self, input_messages: Sequence[Json], output_messages: Sequence[Json]
    ) -> None:
        """Show the format's own messages in the Response (`enable_response_messages`)."""
        self.response = replace(
            self.response,
            input_messages=tuple(input_messages),
            output_messages=tuple(output_messages),
        )

    def show_cache_diagnostics(self, diagnostics: CacheDiagnostics) -> None:
        """Show in the Response what could be reused (`comparison_response_id`)."""
        self.response = replace(self.response, prompt_cache_diagnostics=diagnostics)

    def show_moderation(self, moderation: ResponseModeration) -> None:
        """Show in the Response how its input and output are moderated (`moderation`)."""
        self.response = replace(self.response, moderation=moderation)

    @property
    def is_diagnosed(self) -> bool:
        """Whether the Response shows what could be reused."""
        return self.response.prompt_cache_diagnostics is not UNSET

    def cancel(self) -> list[e.Event]:
        """End as cancelled, with `incomplete`: the API has no event of its own for cancellation
        (docs/reference/events.md#order)."""
        events = self._close("incomplete")
        return self._number([*events, e.Incomplete(response=self._end("cancelled"))])

    def _close(self, status: str) -> Sequence[e.Event]:
        if self._open is None:
            return ()
        events = self._open.close(status)
        self.output.append(self._open.item)
        self._open = None
        return events

    def _end(self, status: str, **changes: object) -> Response:
        shows_messages = self.response.input_messages is not UNSET
        usages = per_turn(self.turns) if shows_messages or len(self.turns) > 1 else ()
        if self.metrics is not None:
            changes["metrics"] = self.metrics()
        if self._stop_string is not None:
            changes["stop_string"] = self._stop_string
        self.response = replace(
            self.response,
            status=status,
            output=tuple(self.output),
            usage=total([*self.turns, *self.agent_turns], list_turns=shows_messages)
            if self.turns or self.agent_turns
            else None,
            usage_per_turn=usages if shows_messages or len(usages) > 1 else UNSET,
            **changes,
        )
        return self.response

    def _number(self, events: Sequence[e.Event]) -> list[e.Event]:
        # The only place that numbers events and checks them against the lifecycle: all of them or
        # none. It may write to the frozen events because nothing else has seen them yet.
        state, number = self._state, self._next_number
        for event in events:
            state = advance(state, event)
            force_setattr(event, "sequence_number", number)
            if self._agent is not None and event.agent is UNSET:
                force_setattr(event, "agent", self._agent)
            number += 1
        self._state, self._next_number = state, number
        return list(events)
