"""Moderate texts for clients, by the API that guards ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec import Struct

from antiphon.application.ports import Moderator, NewId
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import LimitState
from antiphon.domain.errors import GuardFailed, NotFound, RequestError
from antiphon.domain.requests.moderations import NewModeration, texts_of
from antiphon.domain.responses.guards import ModerationScores
from antiphon.domain.responses.usage import TurnUsage

logger = logging.getLogger("antiphon.guards")

AT_ONCE = 8
"""Texts in work, of all tenants."""

CHARS_PER_TOKEN = 4
"""An estimate, for limits: moderation APIs count no tokens."""


class MadeModeration(Struct, frozen=True, kw_only=True):
    """The results, in the order of the texts, and what the caller's key has used."""

    id: str
    model: str
    results: Sequence[ModerationScores]
    rate_limits: Sequence[LimitState]


class Moderate:
    """`POST /v1/moderations`. Without a `moderator`, there is no moderation model."""

    def __init__(
        self,
        moderator: Moderator | None,
        limits: EnforceLimits,
        *,
        timeout_s: float,
        new_id: NewId,
    ) -> None:
        self._moderator = moderator
        self._limits = limits
        self._timeout_s = timeout_s
        self._new_id = new_id
        self._queue = FairQueue(AT_ONCE)

    async def __call__(self, caller: Caller, request: NewModeration) -> MadeModeration:
        """Moderate all texts, or none.

        Raises: NotFound, RequestError, LimitExceeded, GuardFailed.
        """
        if (moderator := self._moderator) is None:
            raise NotFound(
                "This server has no moderation model; its operator names one with moderation.url.",
                code="model_not_found",
            )
        if request.model is not None and request.model != moderator.model:
            raise RequestError(
                f"This server has no moderation model {request.model[:100]!r}, only "
                f"{moderator.model!r}.",
                param="model",
                code="model_not_found",
            )
        texts = texts_of(request)
        tokens = sum(-(-len(text) // CHARS_PER_TOKEN) for text in texts)
        request_id = self._new_id("modr")

        async def count() -> int:
            return tokens

        async with self._limits.reserve(caller, request_id) as reservation:
            await reservation.reserve_tokens(count)
            results: list[ModerationScores] = []
            for text in texts:
                async with self._queue.slot(caller.tenant):
                    results.append(await self._moderate(moderator, text, caller.tenant))
        if reservation.charge is not None:
            used = (TurnUsage(input=tokens),)
            await self._limits.settle(reservation.charge, caller.tenant, request_id, used)
        return MadeModeration(
            id=request_id,
            model=moderator.model,
            results=results,
            rate_limits=reservation.states,
        )

    async def _moderate(self, moderator: Moderator, text: str, tenant: str) -> ModerationScores:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await moderator.moderate(text, tenant=tenant)
        except Exception as error:  # whatever its server causes
            logger.exception("a text could not be moderated")
            raise GuardFailed("moderation", "its API gave no result") from error
