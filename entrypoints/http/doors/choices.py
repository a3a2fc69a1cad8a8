"""Several answers to one request: each response is a choice of one object, or of one stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.domain import events as e
from antiphon.domain.content import Logprob
from antiphon.domain.errors import ServerShuttingDown
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Failure, Response
from antiphon.domain.responses.usage import Usage
from antiphon.entrypoints.http.doors.joined_text import Joined
from antiphon.entrypoints.http.errors import error_json
from antiphon.entrypoints.http.wire.dialects import CHAT, Dialect
from antiphon.entrypoints.http.wire.sse import EventEncoder

_encode = msgspec.json.Encoder().encode


def with_seed(request: CreateResponse, number: int) -> CreateResponse:
    """Return the request of one of several answers, which differ though a seed was sent."""
    if request.seed is None or not number:
        return request
    return replace(request, seed=request.seed ^ number)


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class CompletionUsage(Struct, frozen=True, kw_only=True):
    """The tokens of all turns of the response."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_of(usages: Sequence[Usage | None], *, to_prompt: int) -> CompletionUsage | None:
    """Return the usage of all choices, None if none is known.

    Of the choices, each `to_prompt` in a row answer one prompt, which counts once.
    """
    known = [usage for usage in usages if usage is not None]
    if not known:
        return None
    answers = (usages[start : start + to_prompt] for start in range(0, len(usages), to_prompt))
    prompts = [usage for each in answers for usage in [*filter(None, each)][:1]]
    read = sum(usage.input_tokens for usage in prompts)
    written = sum(usage.output_tokens for usage in known)
    cached = sum(usage.input_tokens_details.cached_tokens for usage in prompts)
    reasoning = sum(usage.output_tokens_details.reasoning_tokens for usage in known)
    return CompletionUsage(
        prompt_tokens=read,
        completion_tokens=written,
        total_tokens=read + written,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning),
    )


class Choices:
    """The choices of one stream: the id that they share, and the usage of each up to now.

    Each `to_prompt` in a row answer one prompt.
    """

    def __init__(self, count: int = 1, *, to_prompt: int | None = None) -> None:
        self._count = count
        self._to_prompt = to_prompt or count
        self._id: str | None = None
        self._usages: dict[int, Usage | None] = {}
        self._ended: set[int] = set()

    def id_for(self, response_id: str) -> str:
        """Return the response whose id is that of all: the one that begins first."""
        self._id = self._id or response_id
        return self._id

    def end(self, number: int, usage: Usage | None) -> bool:
        """Note the end of a choice, and return whether it was the last one."""
        self.count(number, usage)
        self._ended.add(number)
        return len(self._ended) == self._count

    def count(self, number: int, usage: Usage | None) -> None:
        """Note the tokens of a choice up to now."""
        self._usages[number] = usage

    @property
    def usage(self) -> CompletionUsage | None:
        usages = [self._usages.get(number) for number in range(self._count)]
        return usage_of(usages, to_prompt=self._to_prompt)


class UsageView(Struct, frozen=True, kw_only=True):
    """Where the client of a stream sees its usage.

    `at_end`: in a chunk of its own after the others. `in_chunks`: in each chunk, up to it.
    """

    at_end: bool = False
    in_chunks: bool = False


class ChoiceEncoder(EventEncoder):
    """Encodes the events of one response as chunks, each with a choice, or it as one object.

    What is the same in all chunks is encoded once. `number` is that of the choice.
    """

    def __init__(self, number: int, choices: Choices | None, usage: UsageView) -> None:
        self._number = number
        self._index = b'[{"index":%d,' % number
        self._choices = choices or Choices()
        self._usage = usage
        self._is_opening = False
        """With `in_chunks`, the chunk that opens the choice waits for the next one's count."""
        self._head = self._tail = self._before_text = self._after_text = b""
        self._content = Joined()
        self._is_over = False

    @property
    def dialect(self) -> Dialect:
        return CHAT

    def frames(self, events: Sequence[e.Event]) -> bytes:
        if self._usage.in_chunks:
            return b"".join([self._counted_frame(event) for event in events])
        frames: list[bytes] = []
        for event in events:
            # Nearly all are texts: no object is made for these.
            if type(event) is e.TextDelta and not event.logprobs:
                if text := self._content.add(event.output_index, event.content_index, event.delta):
                    frames += (self._before_text, _encode(text), self._after_text)
            else:
                frames += self._frames_of(event)
        return b"".join(frames)

    def last_frame(self) -> bytes:
        return self.cut() + CHAT.done

    def cut(self) -> bytes:
        """Return the frame that says that the response has not ended, b"" if it has."""
        if self._is_over:
            return b""
        # The server stops, and the response goes on elsewhere: this stream is not the whole answer.
        error = ServerShuttingDown()
        return self._error(error.message, error.code)

    def encode_response(self, value: Any) -> bytes:
        """`value` is a response, a list of those of all choices, or another object."""
        responses = value if isinstance(value, list) else [value]
        is_answer = isinstance(responses[0], Response)
        return _encode(self.object_of(responses) if is_answer else value)

    # --- where the doors differ ---

    before_text: bytes
    """A choice of a chunk, up to its text: all that follows the number of the choice."""

    after_text: bytes
    """The end of what `before_text` has begun."""

    nothing: bytes
    """A choice that adds nothing, from the same place on."""

    @abstractmethod
    def object_of(self, responses: Sequence[Response]) -> Struct:
        """Return the object whose choices are these finished responses."""

    @abstractmethod
    def shared_of(self, response: Response, response_id: str) -> Mapping[str, Any]:
        """Return what all chunks share; `response_id` is that of the response that gives the id."""

    def opening(self) -> bytes | None:
        """Return what the first chunk of a choice says, None if there is none."""
        return None

    @abstractmethod
    def addition(self, event: e.Event) -> bytes | None:
        """Return what an event adds to its choice, as `before_text` begins, None for nothing."""

    @abstractmethod
    def logprobs_of(self, logprobs: Sequence[Logprob]) -> Struct:
        """Return the log probabilities of the next tokens of the text."""

    @abstractmethod
    def reason_of(self, response: Response) -> str:
        """Return why a response ended."""

    # --- chunks ---

    def _frames_of(self, event: e.Event) -> Iterator[bytes]:
        if (addition := self.addition(event)) is not None:
            yield self._chunk(addition, getattr(event, "logprobs", ()))
        elif isinstance(event, e.Created):
            yield from self._begin(event.response)
        elif isinstance(event, e.Error):
            yield self._error(event.message, event.code)
        elif isinstance(event, e.Failed) and not self._is_over:
            yield self._fail(event.response.error)
        elif isinstance(event, e.Completed | e.Incomplete):
            self._is_over = True
            yield self._chunk(self.nothing, finish_reason=self.reason_of(event.response))
            is_last = self._choices.end(self._number, event.response.usage)
            if is_last and self._usage.at_end:
                yield self._head + b'[],"usage":' + _encode(self._choices.usage) + b"}\n\n"

    def _begin(self, response: Response) -> Iterator[bytes]:
        shared = self.shared_of(response, self._choices.id_for(response.id))
        self._head = b"data: " + _encode(shared)[:-1] + b',"choices":'
        self._tail = b'}],"usage":null}\n\n' if self._usage.at_end else b"}]}\n\n"
        self._before_text = self._head + self._index + self.before_text
        self._after_text = self.after_text + b',"logprobs":null,"finish_reason":null' + self._tail
        if (opening := self.opening()) is not None:
            yield self._chunk(opening)

    def _counted_frame(self, event: e.Event) -> bytes:
        """Return the frames of an event, whose chunks show the usage up to it."""
        usage: Usage | UnsetType | None = event.usage
        if isinstance(event, e.Completed | e.Incomplete):
            usage = event.response.usage
        if usage is not UNSET:
            self._choices.count(self._number, usage)
            self._tail = b'}],"usage":' + _encode(self._choices.usage) + b"}\n\n"
        frames = b"".join(self._frames_of(event))
        if isinstance(event, e.Created):
            self._is_opening = True
            return b""
        if not frames or not self._is_opening:
            return frames
        self._is_opening = False
        opening = self.opening()
        return frames if opening is None else self._chunk(opening) + frames

    def _chunk(
        self,
        addition: bytes,
        logprobs: Sequence[Logprob] = (),
        finish_reason: str | None = None,
    ) -> bytes:
        return b"".join(
            (
                self._head,
                self._index,
                addition,
                b',"logprobs":',
                _encode(self.logprobs_of(logprobs)) if logprobs else b"null",
                b',"finish_reason":',
                _encode(finish_reason),
                self._tail,
            )
        )

    def _fail(self, failure: Failure | None) -> bytes:
        if failure is None:
            return self._error("The response failed.", "server_error")
        return self._error(failure.message, failure.code)

    def _error(self, message: str, code: str | None) -> bytes:
        self._is_over = True
        return b"data: " + error_json(500, message, None, code, CHAT) + b"\n\n"


class ChoicesEncoder(EventEncoder):
    """Encodes the events of several responses, each as a choice of one object."""

    def __init__(self, each: Sequence[ChoiceEncoder]) -> None:
        self._each = each
        self._selected = each[0]

    @property
    def dialect(self) -> Dialect:
        return CHAT

    def select(self, number: int) -> None:
        """The next events are those of the response with this number."""
        self._selected = self._each[number]

    def frames(self, events: Sequence[e.Event]) -> bytes:
        return self._selected.frames(events)

    def last_frame(self) -> bytes:
        return b"".join(each.cut() for each in self._each) + CHAT.done

    def encode_response(self, value: Any) -> bytes:
        return self._each[0].encode_response(value)
