"""Check whether this server is ready to serve requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from antiphon.application.model.models import (
    CHECK_TIMEOUT_S,
    READY,
    SILENT,
    STARTING,
    UNAVAILABLE,
    Models,
)
from antiphon.application.ports import FileStore, Store
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.support.tasks import start_shared_task
from antiphon.domain.errors import StoreError

logger = logging.getLogger("antiphon.http")

CACHED_S = 1.0
"""Seconds for which a probe of a store counts: it writes, and anyone may ask, however often."""


class Readiness(Struct, frozen=True, kw_only=True):
    """The state of each part: `ok`, or one word for the problem. `reasons` has some in words.

    Without `files`, responses can be served: the server is ready, as it is without some models.
    `models` has that of each model, by its first name. `engine` is `ok` if one of them works, and
    none is still starting for the first time: requests for the others get an error.
    """

    server: str
    store: str
    files: str
    engine: str
    models: Mapping[str, str]
    reasons: Mapping[str, str]

    @property
    def is_ready(self) -> bool:
        return self.server == self.store == self.engine == "ok"


class CheckReady:
    """Checks that this server accepts requests, its stores are writable and its models answer.

    `clock` returns seconds from any starting point.
    """

    def __init__(
        self,
        store: Store,
        files: FileStore,
        models: Models,
        runs: ActiveRuns,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._store = _Probe("store", store.check, clock)
        self._files = _Probe("files", files.check, clock)
        self._models = models
        self._runs = runs

    async def __call__(self) -> Readiness:
        store, files, models = await asyncio.gather(
            self._store.state(), self._files.state(), self._models.states()
        )
        return Readiness(
            server="stopping" if self._runs.is_closed else "ok",
            store=store,
            files=files,
            engine=_engine_state(models),
            models=models,
            reasons={
                probe.part: probe.reason for probe in (self._store, self._files) if probe.reason
            },
        )


class _Probe:
    """The state of a part that is probed at most once in `CACHED_S`, for all who ask.

    `reason` says in words why it is not `ok`, if that is known.
    """

    def __init__(
        self, part: str, check: Callable[[], Awaitable[None]], clock: Callable[[], float]
    ) -> None:
        self.part = part
        self.reason = ""
        self._check = check
        self._clock = clock
        self._running: asyncio.Task[str] | None = None
        self._ended_at = 0.0

    async def state(self) -> str:
        is_old = self._running is not None and self._running.done() and self._is_old()
        if self._running is None or is_old:
            self._running = start_shared_task(self._probe())
        return await asyncio.shield(self._running)

    def _is_old(self) -> bool:
        return self._clock() - self._ended_at >= CACHED_S

    async def _probe(self) -> str:
        state, self.reason = await self._outcome()
        self._ended_at = self._clock()
        return state

    async def _outcome(self) -> tuple[str, str]:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._check()
        except TimeoutError:
            return SILENT, f"it did not answer within {CHECK_TIMEOUT_S:g} seconds"
        except Exception as error:
            # Only the reason is in the answer: the rest may name machines, and anyone may ask.
            logger.exception("not ready: %s", self.part)
            return UNAVAILABLE, error.reason if isinstance(error, StoreError) else ""
        return READY, ""


def _engine_state(models: Mapping[str, str]) -> str:
    """Return the state of the engines together: the first of these that one of them is in.

    >>> _engine_state({"a": "ok", "b": "unavailable"}), _engine_state({"a": "ok", "b": "starting"})
    ('ok', 'starting')
    """
    states = models.values()
    return next(state for state in (STARTING, READY, SILENT, UNAVAILABLE) if state in states)
