"""Would a request be served? What is in the way is named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from msgspec import Struct

from antiphon.application.model.models import Models
from antiphon.application.ports import ResponseStore
from antiphon.application.runs.active_runs import ActiveRuns

logger = logging.getLogger("antiphon.http")

ANSWER_S = 2.0
"""What does not answer by then is not ready."""


class Readiness(Struct, frozen=True, kw_only=True):
    """Each part is `ok`, or in a word why it is not."""

    server: str
    store: str
    engine: str

    @property
    def is_ready(self) -> bool:
        return self.server == self.store == self.engine == "ok"


class CheckReady:
    """Whether this server takes requests, its store can be written, and its engine answers."""

    def __init__(self, store: ResponseStore, models: Models, runs: ActiveRuns) -> None:
        self._store = store
        self._models = models
        self._runs = runs

    async def __call__(self) -> Readiness:
        store, engine = await asyncio.gather(
            _state(self._store.check()), _state(self._models.check())
        )
        return Readiness(
            server="stopping" if self._runs.is_closed else "ok", store=store, engine=engine
        )


async def _state(check: Awaitable[None]) -> str:
    try:
        async with asyncio.timeout(ANSWER_S):
            await check
    except TimeoutError:
        return "silent"
    except Exception:  # its text may name machines, and anybody may ask
        logger.exception("not ready")
        return "unavailable"
    return "ok"
