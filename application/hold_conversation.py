"""A conversation runs one response at a time (api_surface 7.3): who holds it, and its release."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.application.ports import ResponseStore
from antiphon.application.runs import to_the_end
from antiphon.domain.errors import NotFound, conversation_not_found
from antiphon.domain.request import CreateResponse

logger = logging.getLogger("antiphon.conversations")


class HoldConversation:
    """Keeps a request's conversation for its response, from before its items are read: what the
    model is given is then all that the conversation has when the response's items are added.
    """

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    @asynccontextmanager
    async def __call__(
        self, request: CreateResponse, *, tenant: str, response_id: str
    ) -> AsyncIterator[None]:
        """Claim the conversation, if there is one; an exception inside the block frees it.

        After the block the run holds it, to its end. Raises: NotFound, ConversationLocked.
        """
        conversation_id = request.conversation_id
        if conversation_id is None:
            yield
            return
        try:
            await self._claim(tenant, conversation_id, response_id)
            yield
        except BaseException:
            # Also where the claim itself was cancelled: the store may have made it all the same.
            await to_the_end(free(self._store, tenant, conversation_id, response_id))
            raise

    async def _claim(self, tenant: str, conversation_id: str, response_id: str) -> None:
        try:
            await self._store.claim(tenant, conversation_id, response_id)
        except NotFound:
            raise conversation_not_found(conversation_id) from None


async def free(store: ResponseStore, tenant: str, conversation_id: str, response_id: str) -> None:
    """Release without adding anything; a store that fails again is logged, not raised."""
    try:
        await store.release(tenant, conversation_id, response_id)
    except Exception:
        logger.exception(
            "conversation %s stays locked by %s until the next start", conversation_id, response_id
        )
