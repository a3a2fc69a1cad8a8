"""The claim that lets a conversation run only one response at a time, and its release."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

from antiphon.application.ports import Store
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.errors import NotFound, conversation_not_found
from antiphon.domain.requests.request import CreateResponse


class ClaimConversation:
    """Claims a request's conversation for its response, before the items are read.

    So nothing changes the conversation between reading its items for the model and adding the items
    of the response.
    """

    def __init__(self, store: Store, *, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._compensation = Compensation()

    def __call__(
        self, request: CreateResponse, *, tenant: str, response_id: str
    ) -> AbstractAsyncContextManager[None]:
        """Claim the conversation, if the request has one; an exception in the block releases it.

        After the block the run keeps the claim until its end. Raises: NotFound, ConversationLocked.
        """
        if request.conversation_id is None:
            return nullcontext()
        return self._claiming(request.conversation_id, tenant, response_id)

    @asynccontextmanager
    async def _claiming(
        self, conversation_id: str, tenant: str, response_id: str
    ) -> AsyncIterator[None]:
        try:
            await self._claim(tenant, conversation_id, response_id)
            yield
        except BaseException:
            # This includes a cancelled claim: the store may have made it anyway.
            release = partial(self._release_unless_stored, tenant, conversation_id, response_id)
            log_message = f"conversation {conversation_id} stays locked by {response_id}"
            await run_to_completion(self._compensation.run(release, log_message=log_message))
            raise

    async def _claim(self, tenant: str, conversation_id: str, response_id: str) -> None:
        try:
            await self._store.claim_conversation(
                tenant, conversation_id, response_id, owner=self._owner
            )
        except NotFound:
            raise conversation_not_found(conversation_id) from None

    async def _release_unless_stored(
        self, tenant: str, conversation_id: str, response_id: str
    ) -> None:
        try:
            await self._store.get_response(tenant, response_id)
        except NotFound:
            await self._store.release_conversation(tenant, conversation_id, response_id)
        # A stored response goes on running: its end or its deletion releases the conversation.
