"""A conversation runs one response at a time: who holds it, and its release."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from antiphon.application.ports import ResponseStore
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.errors import NotFound, conversation_not_found
from antiphon.domain.request import CreateResponse


class ClaimConversation:
    """Keeps a request's conversation for its response, from before its items are read: what the
    model is given is then all that the conversation has when the response's items are added.
    """

    def __init__(self, store: ResponseStore, *, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._compensation = Compensation()

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
            undo = partial(self._undo, tenant, conversation_id, response_id)
            log_message = f"conversation {conversation_id} stays locked by {response_id}"
            await run_to_completion(self._compensation.run(undo, log_message=log_message))
            raise

    async def _claim(self, tenant: str, conversation_id: str, response_id: str) -> None:
        try:
            await self._store.claim(tenant, conversation_id, response_id, owner=self._owner)
        except NotFound:
            raise conversation_not_found(conversation_id) from None

    async def _undo(self, tenant: str, conversation_id: str, response_id: str) -> None:
        try:
            await self._store.get(tenant, response_id)
        except NotFound:
            await self._store.release(tenant, conversation_id, response_id)
        # Else it is stored after all, and goes on: whoever ends or deletes it frees it.
