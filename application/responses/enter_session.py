"""Enter a session: go on with the conversation that a request names, with what is new of it
(docs/guides/sessions.md, docs/decisions/0159).

What comes out is a request with `conversation` and less input. So nothing behind this knows of
sessions: neither the run, nor a server that takes it over, nor a store.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.history import LoadHistory
from antiphon.application.input.submission import Submission
from antiphon.application.ports import Clock, Store
from antiphon.application.resources.conversation_claim import ClaimConversation
from antiphon.application.responses.start import AcceptedResponse, SessionState
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.domain.errors import ConversationLocked, NotFound, RequestError, StoreError
from antiphon.domain.history.conversation import Conversation, Entry, entries, raw_items
from antiphon.domain.history.sessions import (
    LAST_KEY,
    NAME_KEY,
    NamedSession,
    compare,
    is_of_client,
    leading_texts,
)
from antiphon.domain.requests.request import CreateResponse, JsonObjectFormat, JsonSchemaFormat

MAX_REMOVED = 100
"""Items that one request may take back, each with an operation of the store."""

_INPUT = re.compile(r"\binput\[(\d+)\]")
_encode = msgspec.json.Encoder().encode


class Entered(Struct, frozen=True, kw_only=True):
    """A request as it goes on, and how many of the items that the client sent it lacks.

    `removed` are the ids of items at the end of the conversation that the client has taken back.
    """

    submission: Submission
    state: SessionState
    left_out: int = 0
    removed: Sequence[str] = ()

    def accept(self, accepted: AcceptedResponse) -> AcceptedResponse:
        """Return the response of the request, for the client that sent it."""
        ignored = [self._as_sent(path) for path in accepted.ignored]
        return replace(accepted, session=self.state, ignored=ignored)

    def rename(self, error: RequestError) -> None:
        """Let an error name an item by its place among those that the client sent."""
        if error.param is not None:
            error.param = self._as_sent(error.param)
        error.message = self._as_sent(error.message)

    def _as_sent(self, text: str) -> str:
        if not self.left_out:
            return text
        return _INPUT.sub(lambda found: f"input[{int(found[1]) + self.left_out}]", text)


class EnterSession:
    """Continues a session, or begins it, under a claim of its conversation.

    A request whose history is another one than that of the conversation runs as it is, aside.
    """

    def __init__(self, store: Store, claim_conversation: ClaimConversation, *, now: Clock) -> None:
        self._store = store
        self._claim_conversation = claim_conversation
        self._load_history = LoadHistory(store)
        self._now = now

    @asynccontextmanager
    async def __call__(self, submission: Submission) -> AsyncIterator[Entered]:
        """Yield the request to go on with; an exception in the block releases the conversation.

        After the block, the run keeps the claim until its end. Raises: RequestError;
        ConversationLocked, if the client joins the session; StoreError.
        """
        async with AsyncExitStack() as claim:
            entered = await self._enter(submission, claim)
            try:
                yield entered
            except RequestError as error:
                entered.rename(error)
                raise

    async def look(self, submission: Submission) -> Entered:
        """Return the request as it would go on; nothing is begun or claimed.

        Raises: RequestError, StoreError.
        """
        conversation = await self._find(submission)
        if conversation is None or _continues_by_itself(submission.request):
            return _aside(submission)
        with suppress(NotFound):  # deleted since
            return await self._compare(submission, conversation) or _aside(submission)
        return _aside(submission)

    async def _enter(self, submission: Submission, claim: AsyncExitStack) -> Entered:
        if _continues_by_itself(submission.request):
            return _aside(submission)
        conversation = await self._find(submission) or await self._begin(submission)
        if conversation is None:
            return _aside(submission)
        tenant, response_id = submission.caller.tenant, submission.response_id
        request = replace(submission.request, conversation=conversation.id)
        try:
            await claim.enter_async_context(
                self._claim_conversation(request, tenant=tenant, response_id=response_id)
            )
        except ConversationLocked:
            if _session_of(submission).joins:
                raise
            return _aside(submission)  # the next request brings what this one adds
        entered = await self._compare(submission, conversation)
        if entered is None:
            await self._store.release_conversation(tenant, conversation.id, response_id)
            return _aside(submission)
        for item in reversed(entered.removed):
            with suppress(NotFound):
                await self._store.delete_conversation_item(tenant, conversation.id, item)
        await self._note(submission, conversation)
        return entered

    async def _find(self, submission: Submission) -> Conversation | None:
        tenant = submission.caller.tenant
        try:
            return await self._store.get_conversation(
                tenant, _session_of(submission).conversation_of(tenant)
            )
        except NotFound:
            return None

    async def _begin(self, submission: Submission) -> Conversation | None:
        """Return a new conversation, None if the request does not begin one."""
        session, tenant = _session_of(submission), submission.caller.tenant
        if not session.joins and _asks_for_data(submission.request):
            return None
        conversation = Conversation(
            id=session.conversation_of(tenant),
            created_at=int(self._now()),
            metadata={NAME_KEY: session.name},
        )
        try:
            await self._store.create_conversation(tenant, conversation)
        except StoreError:  # another request may have made it
            if (found := await self._find(submission)) is None:
                raise
            return found
        return conversation

    async def _compare(self, submission: Submission, conversation: Conversation) -> Entered | None:
        """Return the request with what is new, None if its history is another one.

        Raises: NotFound if there is no conversation; RequestError.
        """
        request = replace(submission.request, conversation=conversation.id)
        tenant = submission.caller.tenant
        history = await self._load_history(request, tenant=tenant, remembered={})
        size = ITEM_BYTES * (len(history) + len(raw_items(request.input)))
        entered = await run_in_thread(size, _with_rest, submission, request, history)
        if entered is None or not entered.removed:
            return entered
        last = conversation.metadata.get(LAST_KEY, "")
        return entered if await self._may_remove(submission, entered, history, last) else None

    async def _may_remove(
        self, submission: Submission, entered: Entered, history: Sequence[Entry], last: str
    ) -> bool:
        """Return whether a client may take back the end of a conversation: it is its own.

        The answer of another client is not, which this one may only not have seen.
        """
        door, _, response_id = last.partition(" ")
        if door != submission.context.door or len(entered.removed) > MAX_REMOVED:
            return False
        try:
            response = await self._store.get_response(submission.caller.tenant, response_id)
        except NotFound:
            return False
        own = {item.id for item in response.output}
        ends = [each.item for each in history[len(history) - len(entered.removed) :]]
        return all(item.id in own for item in ends if not is_of_client(item))

    async def _note(self, submission: Submission, conversation: Conversation) -> None:
        """Note who goes on, if that client may take it back."""
        last = f"{submission.context.door} {submission.response_id}"
        if _session_of(submission).joins:
            last = ""
        if conversation.metadata.get(LAST_KEY, "") != last:
            metadata = {**conversation.metadata, LAST_KEY: last}
            if not last:
                del metadata[LAST_KEY]
            await self._store.update_conversation(
                submission.caller.tenant, conversation.id, metadata
            )


def _with_rest(
    submission: Submission, request: CreateResponse, history: Sequence[Entry]
) -> Entered | None:
    session = _session_of(submission)
    sent = [each.item for each in entries(request.input)]
    texts: Sequence[str] = ()
    if session.is_stateless and request.instructions is None:
        texts = leading_texts(sent)
    held = [each.item for each in history]
    known = compare(held, sent[len(texts) :], joins=session.joins)
    if known is None:
        return None
    left_out = len(texts) + known.sent
    if texts:  # as a client of an API with conversations says it: they are of this request
        request = replace(request, instructions="\n\n".join(filter(None, texts)) or None)
    if left_out:
        request = replace(request, input=tuple(raw_items(request.input)[left_out:]))
    body = submission.body
    return Entered(
        submission=replace(
            submission,
            request=request,
            # A prompt template has been applied; whoever starts the run must not do it again.
            body=None if body is None else _encode(replace(request, prompt=None)),
            session=None,
            history=history[: known.held],
        ),
        state="continued" if history else "begun",
        left_out=left_out,
        removed=[str(item.id) for item in held[known.held :]],
    )


def _aside(submission: Submission) -> Entered:
    return Entered(submission=replace(submission, session=None), state="aside")


def _session_of(submission: Submission) -> NamedSession:
    assert submission.session is not None, "only requests that name a session come here"
    return submission.session


def _continues_by_itself(request: CreateResponse) -> bool:
    return any(
        each is not None
        for each in (
            request.previous_response_id,
            request.conversation,
            request.previous_input_messages,
            request.raw_prompt,
        )
    )


def _asks_for_data(request: CreateResponse) -> bool:
    """Whether this is no beginning: agents ask so for a title, beside the first question."""
    text_format = None if request.text is None else request.text.format
    return not request.tools and isinstance(text_format, JsonSchemaFormat | JsonObjectFormat)
