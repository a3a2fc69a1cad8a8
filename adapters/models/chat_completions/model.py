"""A model on a Chat Completions server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.adapters.formats.portions import has_large_tools, is_large
from antiphon.adapters.formats.unmarked_calls import search_of
from antiphon.adapters.models.chat_completions.capabilities import (
    FEATURES,
    MissingCapabilities,
    check_binding,
    refused_feature,
)
from antiphon.adapters.models.chat_completions.counting import TokenCounter
from antiphon.adapters.models.chat_completions.errors import (
    WRONG_REQUEST,
    is_context_exceeded,
    read_refusal,
    to_our_error,
)
from antiphon.adapters.models.chat_completions.messages import MessageStyle, write_messages
from antiphon.adapters.models.chat_completions.options import ChatOptions
from antiphon.adapters.models.chat_completions.reader import REASONING_KEYS, ChunkReader
from antiphon.adapters.models.chat_completions.request import OUTPUT_LIMITS, RequestBody, write_body
from antiphon.adapters.models.chat_completions.server_info import (
    ServerInfo,
    ask_server,
    list_models,
)
from antiphon.adapters.models.chat_completions.turn import ChatTurn, close_opening
from antiphon.adapters.models.chat_completions.usage import UsageMeter
from antiphon.adapters.upstreams.client import EventStream, UpstreamClient, UpstreamRefused
from antiphon.application.model.output_bounds import MAX_COUNTED_CONTEXTS, bound_of
from antiphon.application.model.stalls import TokenDeadlines
from antiphon.application.model.truncation import longest_that_fits, reserved_tokens
from antiphon.application.ports import AdmitPrompt, Model, ModelTurn, Turn, WrittenPart
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain.errors import EngineDead, RequestError, SettingsError, input_too_long
from antiphon.domain.json import Json

logger = logging.getLogger("antiphon.chat_completions")

DEFAULT_CONTEXT_LENGTH = 131_072
MISTRAL_ID_LENGTH = 9
REFUSAL_S = 5.0
"""The time for which a turn's start waits for the server's status, so that a refusal has one here.
Some servers send it with the first token; a client is not kept without an answer for so long."""
CHECK_S = 1.0
"""The time for which the last answer of the server counts as a sign of life."""
NO_DEADLINES = TokenDeadlines()


class CountedTurn(Struct, frozen=True, kw_only=True):
    """A turn as it will be sent, with the number of its prompt's tokens."""

    turn: Turn
    body: RequestBody
    tokens: int


class ChatCompletionsModel(Model):
    """Runs turns on the server that the `options` name, under the client's `names`.

    Fields that the server refuses as unknown are left out from then on, and named to clients; see
    docs/decisions/0087.
    """

    def __init__(
        self,
        names: Sequence[str],
        options: ChatOptions,
        *,
        deadlines: TokenDeadlines = NO_DEADLINES,
        unmarked_calls: bool = True,
    ) -> None:
        self._names = tuple(names)
        self._options = options
        self._deadlines = deadlines
        self._unmarked_calls = unmarked_calls
        self._model = options.model or self._names[0]
        self._client = UpstreamClient(options.url, options)
        self._counter = TokenCounter(self._client)
        self._info = ServerInfo()
        self._capabilities = MissingCapabilities(options.ignores, model=self._names[0])
        self._reasoning_key = REASONING_KEYS[0]
        self._alive_at = float("-inf")

    @property
    def names(self) -> Sequence[str]:
        return self._names

    @property
    def format_name(self) -> str:
        return "chat completions"

    @property
    def reads_images(self) -> bool:
        if self._options.reads_images is not None:
            return self._options.reads_images
        return self._info.reads_images is not False

    @property
    def efforts(self) -> Sequence[str]:
        return self._options.efforts

    @property
    def context_length(self) -> int:
        return self._options.context_length or self._info.context_length or DEFAULT_CONTEXT_LENGTH

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return {}

    async def start(self) -> None:
        """Raises: SettingsError; EngineDead while the server cannot be reached."""
        await self._client.start()
        try:
            info = await ask_server(self._client, self._model)
            self._info = info
            self._capabilities.know(info.kind)
            if not info.is_listed:
                logger.warning(
                    "model %r: its server does not list the model %r", self._names[0], self._model
                )
            if self._options.count == "auto":
                await self._counter.probe(self._model)
        except BaseException:
            await self._client.aclose()
            raise
        self._note_life()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def check(self) -> None:
        """Ask the server, unless it has just answered."""
        if asyncio.get_running_loop().time() - self._alive_at < CHECK_S:
            return
        try:
            await list_models(self._client)
        except SettingsError as error:
            raise EngineDead(str(error)) from error
        self._note_life()

    async def count(self, turn: Turn) -> int:
        return (await self._count_to_fit(turn)).tokens

    def ignored_fields(self, turn: Turn) -> Sequence[str]:
        if not self._capabilities.missing:
            return ()
        try:
            # Without the messages, which may be long: no field is named for what they contain.
            ignored = self._write_body(turn, (), self._capabilities.missing).ignored
        except RequestError:  # it is refused for what it asks: nothing will be ignored
            return ()
        paths = {FEATURES[name].path for name in ignored if name in FEATURES}
        return sorted(path for path in paths if path is not None)

    async def start_turn(
        self,
        turn: Turn,
        *,
        request_id: str,  # noqa: ARG002 - the server makes ids of its own
        admit: AdmitPrompt | None = None,
    ) -> ModelTurn:
        counted = await self._count_to_fit(turn)
        if self._counter.is_exact and counted.tokens >= self.context_length:
            raise input_too_long(counted.tokens, self.context_length - 1)
        if admit is not None:
            await admit(counted.tokens)
        turn = counted.turn
        written = self._begin(turn, counted.tokens)
        opening = None if written.steps else await self._start_opening(counted)
        meter = UsageMeter(
            written.input_tokens,
            turn.known_tokens,
            max_tokens=MAX_COUNTED_CONTEXTS * self.context_length,
        )
        return ChatTurn(
            turn,
            self._shown_fields(counted.body),
            opening,
            ChunkReader(
                turn,
                meter,
                think=self._options.think,
                bound=bound_of(turn, self.context_length),
                search=search_of(turn) if self._unmarked_calls else None,
                redact=self._client.redact,
            ),
            meter,
            deadlines=self._deadlines,
            on_end=self._note_end,
            written=written.steps,
        )

    def _begin(self, turn: Turn, input_tokens: int) -> WrittenPart:
        """Return the events of a turn that another server has read whole; else it begins again.

        Few of these servers can go on after the start of an answer, and none says that it can.
        Raises: CannotResume.
        """
        if turn.progress is None:
            return WrittenPart((), input_tokens)
        model = f"chat completions {self._names[0]}"
        return turn.progress.begin(model, input_tokens, resumes=False)

    async def _start_opening(self, counted: CountedTurn) -> asyncio.Task[EventStream]:
        """Return the task that opens the stream; wait a little for a refusal, and raise it."""
        opening = asyncio.create_task(self._open(counted))
        try:
            await asyncio.wait({opening}, timeout=REFUSAL_S)
            if opening.done():
                opening.result()
        except BaseException:
            await close_opening(opening)
            raise
        return opening

    def _shown_fields(self, body: RequestBody) -> Json:
        """Return the fields of a request without the operator's own, which may be secret."""
        extra = self._options.extra_body
        return {name: value for name, value in body.fields.items() if name not in extra}

    async def _open(self, counted: CountedTurn) -> EventStream:
        """Send the turn, without what the server turns out to refuse. Raises: AntiphonError."""
        refused: set[str] = set()
        body = counted.body
        while True:
            try:
                stream = await self._client.stream(
                    "/chat/completions",
                    msgspec.json.encode(self._limit_output(body, counted.tokens)),
                    headers=counted.turn.trace_headers,
                    tenant=counted.turn.tenant,
                )
            except UpstreamRefused as error:
                refused.add(self._find_refused(error, body))
                body = self._write(counted.turn, refused)
                continue
            # Only now: what a server says of a request that it takes without is beyond doubt.
            self._capabilities.learn(refused)
            self._note_life()
            return stream

    def _find_refused(self, error: UpstreamRefused, body: RequestBody) -> str:
        """Return what the server refused of a body. Raises: AntiphonError if that is no help."""
        refusal = read_refusal(self._client.redact(error.body.decode(errors="replace")).encode())
        if error.status in WRONG_REQUEST | {500, 501} and not is_context_exceeded(refusal):
            name = refused_feature(refusal.text, body.used)
            if name is not None:
                check_binding([name])
                return name
        raise to_our_error(error, refusal, model=self._names[0], used=body.used) from None

    async def _count_to_fit(self, turn: Turn) -> CountedTurn:
        if not turn.truncate:
            return await self._count(turn)
        limit = self.context_length - reserved_tokens(turn, self.context_length)
        _, counted = await longest_that_fits(
            turn, self._count, limit=limit, tokens_of=lambda counted: counted.tokens
        )
        return counted

    async def _count(self, turn: Turn) -> CountedTurn:
        if is_large(turn) or has_large_tools(turn):
            body = await compute_in_thread(self._write, turn)
        else:
            body = self._write(turn)
        return CountedTurn(turn=turn, body=body, tokens=await self._counter.count(body))

    def _write(self, turn: Turn, refused: Collection[str] = ()) -> RequestBody:
        """Return the request for a turn. Raises: RequestError for what cannot be left out."""
        missing = self._capabilities.missing.union(refused)
        style = MessageStyle(
            reasoning_key=None if "reasoning_content" in missing else self._reasoning_key,
            alternating="role_order" in missing,
            call_id_length=MISTRAL_ID_LENGTH if "long_call_ids" in missing else None,
        )
        return self._write_body(turn, write_messages(turn, style), missing)

    def _write_body(
        self, turn: Turn, messages: Sequence[Json], missing: Collection[str]
    ) -> RequestBody:
        return write_body(
            turn,
            messages,
            model=self._model,
            missing=missing,
            kind=self._info.kind,
            extra=self._options.extra_body,
        )

    def _limit_output(self, body: RequestBody, prompt_tokens: int) -> Json:
        """Return the fields with `max_tokens` for which the context has room: servers refuse more.

        If the prompt is only estimated, the server must find out.
        """
        free = self.context_length - (prompt_tokens if self._counter.is_exact else 0)
        limits = {
            name: max(1, min(body.fields[name], free))
            for name in OUTPUT_LIMITS
            if name in body.fields
        }
        return body.fields | limits

    def _note_end(self, reader: ChunkReader) -> None:
        self._note_life()
        if reader.reasoning_key is not None:
            self._reasoning_key = reader.reasoning_key

    def _note_life(self) -> None:
        self._alive_at = asyncio.get_running_loop().time()
