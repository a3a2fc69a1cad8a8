"""Check whether this server is ready to serve requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping

from msgspec import Struct

from antiphon.application.model.models import (
    CHECK_TIMEOUT_S,
    READY,
    SILENT,
    STARTING,
    UNAVAILABLE,
    Models,
)
from antiphon.application.ports import Store
from antiphon.application.runs.active_runs import ActiveRuns

logger = logging.getLogger("antiphon.http")


class Readiness(Struct, frozen=True, kw_only=True):
    """The state of each part: `ok`, or one word for the problem.

    `models` has that of each model, by its first name. `engine` is `ok` if one of them works, and
    none is still starting for the first time: requests for the others get an error.
    """

    server: str
    store: str
    engine: str
    models: Mapping[str, str]

    @property
    def is_ready(self) -> bool:
        return self.server == self.store == self.engine == "ok"


class CheckReady:
    """Checks that this server accepts requests, its store is writable and its models answer."""

    def __init__(self, store: Store, models: Models, runs: ActiveRuns) -> None:
        self._store = store
        self._models = models
        self._runs = runs

    async def __call__(self) -> Readiness:
        store, models = await asyncio.gather(_state_of(self._store.check()), self._models.states())
        return Readiness(
            server="stopping" if self._runs.is_closed else "ok",
            store=store,
            engine=_engine_state(models),
            models=models,
        )


def _engine_state(models: Mapping[str, str]) -> str:
    """Return the state of the engines together: the first of these that one of them is in.

    >>> _engine_state({"a": "ok", "b": "unavailable"}), _engine_state({"a": "ok", "b": "starting"})
    ('ok', 'starting')
    """
    states = models.values()
    return next(state for state in (STARTING, READY, SILENT, UNAVAILABLE) if state in states)


async def _state_of(check: Awaitable[None]) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check
    except TimeoutError:
        return SILENT
    except Exception:  # not in the answer: it may name machines, and the endpoint is public
        logger.exception("not ready")
        return UNAVAILABLE
    return READY
