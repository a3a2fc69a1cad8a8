"""Compact a conversation on request.

The service runs a response with a compaction_trigger and returns the result as a new input window.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.application.input.submission import Submission
from antiphon.application.ports import NewId
from antiphon.application.responses.create import CreateResponseService
from antiphon.application.responses.start import AcceptedResponse
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import Entry, entry, raw_items, to_resource
from antiphon.domain.items import AnyItem, CompactionTrigger, Message
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.usage import Usage

TRIGGER = entry(CompactionTrigger()).raw


class CompactedWindow(Struct, frozen=True, kw_only=True):
    """The items that replace the conversation: all user messages, then the compaction."""

    id: str
    object: str = "response.compaction"
    created_at: int
    output: tuple[Raw | AnyItem, ...]
    usage: Usage | None


class RunningCompaction(Struct, frozen=True, kw_only=True):
    """A running compaction; `window` returns the result from the final response."""

    created: AcceptedResponse
    new_id: NewId

    def window(self, response: Response) -> CompactedWindow:
        turn = self.created.turn
        user_messages = _user_messages((*turn.history, *turn.input), self.new_id)
        return CompactedWindow(
            id=response.id,
            created_at=response.created_at,
            output=(*user_messages, *response.output),
            usage=response.usage,
        )


class CompactConversation:
    """`POST /v1/responses/compact` (docs/reference/api.md#compaction). It stores nothing."""

    def __init__(self, create: CreateResponseService, *, new_id: NewId) -> None:
        self._create = create
        self._new_id = new_id

    async def __call__(self, submission: Submission) -> RunningCompaction:
        """Start the run. Raises: RequestError, ServerOverloaded, EngineDead, StoreError."""
        request = submission.request
        if request.conversation is not None:
            raise RequestError(
                "Unsupported parameter: 'conversation'. Send its items as 'input'.",
                param="conversation",
                code="unsupported_parameter",
            )
        items = (*raw_items(request.input), TRIGGER)
        compaction_request = replace(
            request,
            input=items,
            store=False,
            background=None,
            stream=None,
            # Either would only warm up the cache and return a window without a compaction.
            generate=None,
            prompt_cache_options=None,
        )
        # Without its body, which asks for something else, only this server can run it.
        created = await self._create(replace(submission, request=compaction_request, body=None))
        return RunningCompaction(created=created, new_id=self._new_id)


def _user_messages(entries: Sequence[Entry], new_id: NewId) -> list[Raw]:
    return [
        to_resource(each, new_id)[1]
        for each in entries
        if isinstance(each.item, Message) and each.item.role == "user"
    ]
