"""Several runs that answer one request: their events as one stream, or their responses as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from antiphon.application.ports import EventBatches, WriteBatch
from antiphon.application.support.tasks import all_of
from antiphon.domain import events as e
from antiphon.domain.responses.response import Response

ANSWERS = (e.Completed, e.Incomplete)


class RunsTogether:
    """Hands on the events of all runs as they are ready, those of each run in their order.

    `select` is told the number of the run whose events are written next.
    """

    def __init__(self, runs: Sequence[EventBatches], select: Callable[[int], None]) -> None:
        self._runs = runs
        self._select = select

    async def forward(self, write: WriteBatch) -> None:
        """Write each batch of each run, one at a time. Raises what `write` raises."""
        writing = asyncio.Lock()  # a frame may be sent in portions

        def forward_run(number: int, run: EventBatches) -> Coroutine[Any, Any, None]:
            async def write_alone(batch: Sequence[e.Event]) -> None:
                async with writing:
                    self._select(number)
                    if (unwritten := write(batch)) is not None:
                        await unwritten

            return run.forward(write_alone)

        await all_of(forward_run(number, run) for number, run in enumerate(self._runs))


class LastEvents:
    """Waits for the last event of each run, and hands one on: that of the first run without an
    answer, else that of the first run."""

    def __init__(self, runs: Sequence[EventBatches]) -> None:
        self._runs = runs
        self._last: list[e.Event | None] = [None for _ in runs]

    async def forward(self, write: WriteBatch) -> None:
        """Raises what `write` raises."""
        await all_of(self._keep_last(number, run) for number, run in enumerate(self._runs))
        without = (each for each in self._last if not isinstance(each, ANSWERS))
        if (told := next(without, self._last[0])) is not None:
            write([told])

    def responses(self, _first: Response) -> list[Response]:
        """Return the responses of all runs, which have an answer each."""
        return [each.response for each in self._last if isinstance(each, ANSWERS)]

    def _keep_last(self, number: int, run: EventBatches) -> Coroutine[Any, Any, None]:
        def keep(batch: Sequence[e.Event]) -> None:
            self._last[number] = batch[-1]

        return run.forward(keep)
