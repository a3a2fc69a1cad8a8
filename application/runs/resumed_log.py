"""The log of a run that another server has begun: the run writes it again before it goes on."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from itertools import takewhile
from typing import Any

from antiphon.application.ports import WebhookDelivery
from antiphon.application.progress.run_progress import RunProgress
from antiphon.application.runs.event_chunks import lines_of
from antiphon.application.runs.journal import Journal
from antiphon.application.runs.running_usage import without_usage
from antiphon.domain.errors import RunDiverged
from antiphon.domain.events import RESPONSE_EVENTS, Error, Event
from antiphon.domain.responses.response import Response
from antiphon.domain.sequencer import Sequencer


class ResumedLog:
    """The events that a resumed run must repeat: `sequencer` is as it was after all of them.

    Entering it takes the sequencer back to the run's start. Leaving it takes the sequencer to the
    end of the log again, if the run has not come so far, and then raises RunDiverged if nothing
    else was raised.
    """

    def __init__(
        self, sequencer: Sequencer, events: Sequence[Event], progress: RunProgress
    ) -> None:
        self._sequencer = sequencer
        self._events = events
        self._progress = progress
        self._next = len(events)
        progress.is_shown = lambda: self.is_behind

    @property
    def is_behind(self) -> bool:
        """Whether the run has not repeated all events."""
        return self._next < len(self._events)

    @property
    def is_ending(self) -> bool:
        """Whether the run had begun to fail."""
        return isinstance(self._events[-1], Error)

    def __enter__(self) -> None:
        start = [*takewhile(lambda event: isinstance(event, RESPONSE_EVENTS), self._events)]
        if len(start) < len(self._events):
            self._sequencer.restore(start)
            self._next = len(start)

    def skip(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return those of the run's next events that are not in the log.

        Raises: RunDiverged if the log has others in their place.
        """
        logged = self._events[self._next : self._next + len(events)]
        # Encoded: what was stored has lists and dicts where new events may have other types.
        # What is written again may come in other batches, and so with other counts.
        written = without_usage(events[: len(logged)])
        if lines_of(without_usage(logged)) != lines_of(written):
            raise RunDiverged(f"The event {self._next} differs from the one in the log.")
        self._next += len(logged)
        return events[len(logged) :]

    def __exit__(self, error: object, *_: object) -> None:
        if not self.is_behind:
            return
        ended_at, self._next = self._next, len(self._events)
        self._sequencer.restore(self._events)
        self._progress.forget()
        if error is None:
            raise RunDiverged(f"The run has ended before the event {ended_at} of the log.")


class ResumedJournal(Journal):
    """The journal of a resumed run: it writes only what is not in the log."""

    def __init__(self, journal: Journal, log: ResumedLog) -> None:
        self._journal = journal
        self._log = log

    def append(self, events: Sequence[Event]) -> Coroutine[Any, Any, None]:
        return self._journal.append(self._log.skip(events) if self._log.is_behind else events)

    async def finish(
        self, response: Response, end: Sequence[Event], deliveries: Sequence[WebhookDelivery] = ()
    ) -> bool:
        return await self._journal.finish(response, end, deliveries)

    async def give_up(self, end: Sequence[Event]) -> None:
        await self._journal.give_up(end)
