"""Enter a session: go on with the conversation that a request names, with what is new of it
(docs/guides/sessions.md).

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
from antiphon.domain.history.sessions import NAME_KEY, Session, count_known, leading_texts
from antiphon.domain.requests.request import CreateResponse, JsonObjectFormat, JsonSchemaFormat

_INPUT = re.compile(r"\binput\[(\d+)\]")
_encode = msgspec.json.Encoder().encode


class Entered(Struct, frozen=True, kw_only=True):
    """A request as it goes on, and how many of the items that the client sent it lacks."""

    submission: Submission
    state: SessionState
    left_out: int = 0

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
        with suppress(NotFound):
            if not _continues_by_itself(submission.request):
                return await self._compare(submission) or _aside(submission)
        return _aside(submission)

    async def _enter(self, submission: Submission, claim: AsyncExitStack) -> Entered:
        if _continues_by_itself(submission.request) or not await self._open(submission):
            return _aside(submission)
        tenant, response_id = submission.caller.tenant, submission.response_id
        request = _in_conversation(submission)
        try:
            await claim.enter_async_context(
                self._claim_conversation(request, tenant=tenant, response_id=response_id)
            )
        except ConversationLocked:
            if _session_of(submission).joins:
                raise
            return _aside(submission)  # the next request brings what this one adds
        entered = await self._compare(submission)
        if entered is None:
            await self._store.release_conversation(
                tenant, request.conversation_id or "", response_id
            )
        return entered or _aside(submission)

    async def _open(self, submission: Submission) -> bool:
        """Return whether the session has a conversation, now."""
        session, tenant = _session_of(submission), submission.caller.tenant
        conversation_id = session.conversation_of(tenant)
        if await self._exists(tenant, conversation_id):
            return True
        if not session.joins and _asks_for_data(submission.request):
            return False
        conversation = Conversation(
            id=conversation_id,
            created_at=int(self._now()),
            metadata={NAME_KEY: session.name},
        )
        try:
            await self._store.create_conversation(tenant, conversation)
        except StoreError:  # another request may have made it
            if not await self._exists(tenant, conversation_id):
                raise
        return True

    async def _exists(self, tenant: str, conversation_id: str) -> bool:
        try:
            await self._store.get_conversation(tenant, conversation_id)
        except NotFound:
            return False
        return True

    async def _compare(self, submission: Submission) -> Entered | None:
        """Return the request with what is new, None if its history is another one.

        Raises: NotFound if there is no conversation; RequestError.
        """
        request = _in_conversation(submission)
        history = await self._load_history(request, tenant=submission.caller.tenant, remembered={})
        size = ITEM_BYTES * (len(history) + len(raw_items(request.input)))
        return await run_in_thread(size, _with_rest, submission, request, history)


def _with_rest(
    submission: Submission, request: CreateResponse, history: Sequence[Entry]
) -> Entered | None:
    session = _session_of(submission)
    sent = [each.item for each in entries(request.input)]
    texts: Sequence[str] = ()
    if session.is_stateless and request.instructions is None:
        texts = leading_texts(sent)
    held = [each.item for each in history]
    known = count_known(held, sent[len(texts) :], joins=session.joins)
    if known is None:
        return None
    left_out = len(texts) + known
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
            history=history,
        ),
        state="continued" if history else "begun",
        left_out=left_out,
    )


def _aside(submission: Submission) -> Entered:
    return Entered(submission=replace(submission, session=None), state="aside")


def _session_of(submission: Submission) -> Session:
    assert submission.session is not None, "only requests that name a session come here"
    return submission.session


def _in_conversation(submission: Submission) -> CreateResponse:
    conversation_id = _session_of(submission).conversation_of(submission.caller.tenant)
    return replace(submission.request, conversation=conversation_id)


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
