"""Events and responses as completions: each response is a choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.domain import events as e
from antiphon.domain.content import Logprob, OutputText
from antiphon.domain.errors import ServerShuttingDown
from antiphon.domain.items import Message
from antiphon.domain.responses.response import Failure, Response
from antiphon.domain.responses.usage import Usage
from antiphon.entrypoints.http.doors.chat.completion import (
    CompletionTokensDetails,
    CompletionUsage,
    PromptTokensDetails,
)
from antiphon.entrypoints.http.errors import error_json
from antiphon.entrypoints.http.wire.dialects import CHAT, Dialect
from antiphon.entrypoints.http.wire.sse import EventEncoder

TextReason = Literal["stop", "length", "content_filter"]

_encode = msgspec.json.Encoder().encode
_decode_logprob = msgspec.json.Decoder(Logprob).decode


class CompletionView(Struct, frozen=True, kw_only=True):
    """The sight that a client has of its answers.

    `echoes`: they begin with the prompt. `each`: how many there are to a prompt; `answers`: in all.
    `streamed_usage`: a stream ends with a chunk of the usage.
    """

    echoes: bool = False
    each: int = 1
    answers: int = 1
    streamed_usage: bool = False


class TextLogprobs(Struct, frozen=True, kw_only=True):
    """The log probabilities of the tokens of a text; null for the first token of a prompt.

    `text_offset` has the place in the text at which each token begins.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: TextReason | None = None


class TextCompletion(Struct, frozen=True, kw_only=True):
    """The answer of `POST /v1/completions`, or a chunk of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: CompletionUsage | None = None
    system_fingerprint: None = None


class TokenPlaces:
    """Counts where the tokens of one text begin."""

    def __init__(self, *, echoes: bool) -> None:
        self._is_first = echoes
        self._offset = 0

    def logprobs(self, logprobs: Sequence[Logprob]) -> TextLogprobs | None:
        """Return those of the next tokens, None if there are none."""
        if not logprobs:
            return None
        shown = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for each in logprobs:
            likely = {top.token: top.logprob for top in each.top_logprobs}
            shown.tokens.append(each.token)
            shown.token_logprobs.append(None if self._is_first else each.logprob)
            shown.top_logprobs.append(
                None if self._is_first else {**likely, each.token: each.logprob}
            )
            shown.text_offset.append(self._offset)
            self._offset += len(each.token)
            self._is_first = False
        return shown


class CompletionEncoder(EventEncoder):
    """Encodes the events of one response, or of several, each as a choice of one completion."""

    def __init__(self, view: CompletionView) -> None:
        self._view = view
        self._places = [TokenPlaces(echoes=view.echoes) for _ in range(view.answers)]
        self._ended: dict[int, Usage | None] = {}
        self._number = 0
        self._head = b""
        self._is_over = False

    @property
    def dialect(self) -> Dialect:
        return CHAT

    def select(self, number: int) -> None:
        """The next events are those of the response with this number."""
        self._number = number

    def frames(self, events: Sequence[e.Event]) -> bytes:
        return b"".join(frame for event in events for frame in self._frames_of(event))

    def last_frame(self) -> bytes:
        if self._is_over or len(self._ended) == self._view.answers:
            return CHAT.done
        # The server stops, and this stream is not the whole answer.
        error = ServerShuttingDown()
        return self._error(error.message, error.code) + CHAT.done

    def encode_response(self, value: Any) -> bytes:
        """`value` is a response, or a list of all of them."""
        responses = value if isinstance(value, list) else [value]
        if not isinstance(responses[0], Response):
            return _encode(value)
        return _encode(completion_of(responses, self._view))

    def _frames_of(self, event: e.Event) -> Iterator[bytes]:
        if isinstance(event, e.TextDelta):
            logprobs = self._places[self._number].logprobs(event.logprobs)
            yield self._chunk(event.delta, logprobs)
        elif isinstance(event, e.Created):
            self._head = self._head or _head_of(event.response)
        elif isinstance(event, e.Error):
            yield self._error(event.message, event.code)
        elif isinstance(event, e.Failed) and not self._is_over:
            yield self._fail(event.response.error)
        elif isinstance(event, e.Completed | e.Incomplete):
            yield self._chunk("", None, finish_reason_of(event.response))
            self._ended[self._number] = event.response.usage
            if len(self._ended) == self._view.answers and self._view.streamed_usage:
                usages = [self._ended[number] for number in sorted(self._ended)]
                usage = _encode(usage_of(usages, self._view.each))
                yield self._head + b'[],"usage":' + usage + b"}\n\n"

    def _chunk(
        self, text: str, logprobs: TextLogprobs | None, finish_reason: TextReason | None = None
    ) -> bytes:
        choice = TextChoice(
            index=self._number, text=text, logprobs=logprobs, finish_reason=finish_reason
        )
        tail = b'],"usage":null}\n\n' if self._view.streamed_usage else b"]}\n\n"
        return self._head + b"[" + _encode(choice) + tail

    def _fail(self, failure: Failure | None) -> bytes:
        if failure is None:
            return self._error("The response failed.", "server_error")
        return self._error(failure.message, failure.code)

    def _error(self, message: str, code: str | None) -> bytes:
        self._is_over = True
        return b"data: " + error_json(500, message, None, code, CHAT) + b"\n\n"


def _head_of(response: Response) -> bytes:
    shared = {
        "id": completion_id(response.id),
        "object": "text_completion",
        "created": response.created_at,
        "model": response.model,
        "system_fingerprint": None,
    }
    return b"data: " + _encode(shared)[:-1] + b',"choices":'


def completion_of(responses: Sequence[Response], view: CompletionView) -> TextCompletion:
    """Return the completion whose choices are these finished responses; the first gives its id."""
    first = responses[0]
    return TextCompletion(
        id=completion_id(first.id),
        created=first.created_at,
        model=first.model,
        choices=tuple(_choice_of(each, number, view) for number, each in enumerate(responses)),
        usage=usage_of([each.usage for each in responses], view.each),
    )


def _choice_of(response: Response, number: int, view: CompletionView) -> TextChoice:
    texts: list[str] = []
    logprobs: list[Logprob] = []
    for item in response.output:
        if isinstance(item, Message) and isinstance(item.content, tuple):
            for part in item.content:
                if isinstance(part, OutputText):
                    texts.append(part.text)
                    logprobs += map(_decode_logprob, part.logprobs or ())
    return TextChoice(
        index=number,
        text="".join(texts),
        logprobs=TokenPlaces(echoes=view.echoes).logprobs(logprobs),
        finish_reason=finish_reason_of(response),
    )


def completion_id(response_id: str) -> str:
    """Return the id that a client sees.

    >>> completion_id("resp_1a")
    'cmpl-1a'
    """
    return f"cmpl-{response_id.removeprefix('resp_')}"


def finish_reason_of(response: Response) -> TextReason:
    """Return why a response ended."""
    if response.incomplete_details is None:
        return "stop"
    is_filtered = response.incomplete_details.reason == "content_filter"
    return "content_filter" if is_filtered else "length"


def usage_of(usages: Sequence[Usage | None], each: int) -> CompletionUsage | None:
    """Return the usage of all choices, None if none is known: a prompt counts once."""
    known = [usage for usage in usages if usage is not None]
    if not known:
        return None
    prompts = known[::each]
    read = sum(usage.input_tokens for usage in prompts)
    written = sum(usage.output_tokens for usage in known)
    cached = sum(usage.input_tokens_details.cached_tokens for usage in prompts)
    return CompletionUsage(
        prompt_tokens=read,
        completion_tokens=written,
        total_tokens=read + written,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=0),
    )
