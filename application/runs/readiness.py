"""Check whether this server is ready to serve requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from msgspec import Struct

from antiphon.application.model.models import Models
from antiphon.application.ports import ResponseStore
from antiphon.application.runs.active_runs import ActiveRuns

logger = logging.getLogger("antiphon.http")

CHECK_TIMEOUT_S = 2.0
"""A part that does not answer in this time is not ready."""


class Readiness(Struct, frozen=True, kw_only=True):
    """The state of each part: `ok`, or one word for the problem."""

    server: str
    store: str
    engine: str

    @property
    def is_ready(self) -> bool:
        return self.server == self.store == self.engine == "ok"


class CheckReady:
    """Checks that this server accepts requests, its store is writable and its engine answers."""

    def __init__(self, store: ResponseStore, models: Models, runs: ActiveRuns) -> None:
        self._store = store
        self._models = models
        self._runs = runs

    async def __call__(self) -> Readiness:
        store, engine = await asyncio.gather(
            _state_of(self._store.check()), _state_of(self._models.check())
        )
        return Readiness(
            server="stopping" if self._runs.is_closed else "ok", store=store, engine=engine
        )


async def _state_of(check: Awaitable[None]) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check
    except TimeoutError:
        return "silent"
    except Exception:  # not in the answer: it may name machines, and the endpoint is public
        logger.exception("not ready")
        return "unavailable"
    return "ok"
