"""Make the sequencer of a new or a resumed response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from antiphon.application.ports import Clock, NewId, Seal
from antiphon.application.progress.run_progress import RunProgress
from antiphon.domain.events import Event
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Response
from antiphon.domain.sequencer import Sequencer


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
    ) -> Sequencer:
        """Return a new response's sequencer; `request` is None if it cannot be read.

        What it makes, ids and sealed texts, is recorded in the `progress`.
        """
        includes = request is not None and request.include
        new_id, seal = self._new_id, self._seal_of(includes, tenant) if includes else None
        if progress is not None:
            new_id = partial(progress.new_id, new_id)
            seal = None if seal is None else partial(progress.seal, seal)
        return Sequencer(response, new_id=new_id, now=self._now, seal=seal)

    def resume(
        self,
        response: Response,
        events: Sequence[Event],
        request: CreateResponse | None,
        tenant: str,
        progress: RunProgress | None = None,
    ) -> Sequencer:
        """Return the sequencer as it was after `events`. Raises: EventOutOfOrder."""
        sequencer = self(response, request, tenant, progress)
        sequencer.restore(events)
        return sequencer

    def _seal_of(self, include: Sequence[str], tenant: str) -> Callable[[str], str] | None:
        if "reasoning.encrypted_content" not in include:
            return None
        return partial(self._seal, tenant)
