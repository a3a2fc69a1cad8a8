"""Events as the chunks of Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.domain import events as e
from antiphon.domain.content import Logprob
from antiphon.domain.errors import ServerShuttingDown
from antiphon.domain.items import FunctionCall
from antiphon.domain.kinds.custom import CustomToolCall
from antiphon.domain.kinds.mcp import McpApprovalRequest
from antiphon.domain.responses.response import Failure, Response
from antiphon.domain.responses.usage import Usage
from antiphon.entrypoints.http.doors.chat.completion import (
    API,
    ChatView,
    ChoiceLogprobs,
    CompletionCall,
    CompletionCustom,
    CompletionDelta,
    CompletionFunction,
    CompletionUsage,
    FinishReason,
    Joined,
    citation_of,
    completion_id,
    completion_of,
    finish_reason_of,
    usage_of,
)
from antiphon.entrypoints.http.doors.server_tools import unapproved
from antiphon.entrypoints.http.errors import error_json
from antiphon.entrypoints.http.wire.dialects import CHAT, Dialect
from antiphon.entrypoints.http.wire.sse import EventEncoder

NOTHING = CompletionDelta()

_encode = msgspec.json.Encoder().encode
_Delta = CompletionDelta | None


class Choices:
    """The choices of one completion: its id, and the usage of those that have ended."""

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._id: str | None = None
        self._ended: dict[int, Usage | None] = {}

    def id_for(self, response_id: str) -> str:
        """Return the id of the completion: that of the response that begins first."""
        self._id = self._id or completion_id(response_id)
        return self._id

    def end(self, number: int, usage: Usage | None) -> bool:
        """Note the end of a choice, and return whether it was the last one."""
        self._ended[number] = usage
        return len(self._ended) == self._count

    @property
    def usage(self) -> CompletionUsage | None:
        return usage_of(*(self._ended[number] for number in sorted(self._ended)))


class ChatEncoder(EventEncoder):
    """Encodes the events of one response as chunks, or the response as a completion.

    What is the same in all chunks is encoded once. `number` is that of its choice.
    """

    def __init__(self, view: ChatView, number: int = 0, choices: Choices | None = None) -> None:
        self._view = view
        self._choices = choices or Choices()
        self._number = number
        self._index = b'[{"index":%d,"delta":' % number
        self._head = self._tail = self._before_text = self._after_text = b""
        self._content = Joined()
        self._refusal = Joined()
        self._thoughts = Joined()
        self._calls: dict[int, int] = {}
        """The number of each call, by the place of its item in the output."""
        self._is_over = False

    @property
    def dialect(self) -> Dialect:
        return CHAT

    def frames(self, events: Sequence[e.Event]) -> bytes:
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
        return _encode(
            completion_of(value, view=self._view) if isinstance(value, Response) else value
        )

    def _frames_of(self, event: e.Event) -> Iterator[bytes]:
        if (read := _DELTAS.get(type(event))) is not None:
            if (delta := read(self, event)) is not None:
                yield self._chunk(delta, getattr(event, "logprobs", ()))
        elif isinstance(event, e.Created):
            yield self._begin(event.response)
        elif isinstance(event, e.Error):
            yield self._error(event.message, event.code)
        elif isinstance(event, e.Failed) and not self._is_over:
            yield self._fail(event.response.error)
        elif isinstance(event, e.Completed | e.Incomplete):
            self._is_over = True
            reason = finish_reason_of(event.response, self._view)
            yield self._chunk(NOTHING, finish_reason=reason)
            is_last = self._choices.end(self._number, event.response.usage)
            if is_last and self._view.streamed_usage:
                yield self._head + b'[],"usage":' + _encode(self._choices.usage) + b"}\n\n"

    def _begin(self, response: Response) -> bytes:
        shared = {
            "id": self._choices.id_for(response.id),
            "object": "chat.completion.chunk",
            "created": response.created_at,
            "model": response.model,
            "system_fingerprint": None,
            "service_tier": response.service_tier,
        }
        self._head = b"data: " + _encode(shared)[:-1] + b',"choices":'
        self._tail = b'}],"usage":null}\n\n' if self._view.streamed_usage else b"}]}\n\n"
        self._before_text = self._head + self._index + b'{"content":'
        self._after_text = b'},"logprobs":null,"finish_reason":null' + self._tail
        return self._chunk(CompletionDelta(role="assistant", content=""))

    def _chunk(
        self,
        delta: CompletionDelta,
        logprobs: tuple[Logprob, ...] = (),
        finish_reason: FinishReason | None = None,
    ) -> bytes:
        return b"".join(
            (
                self._head,
                self._index,
                _encode(delta),
                b',"logprobs":',
                _encode(ChoiceLogprobs(content=logprobs)) if logprobs else b"null",
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

    # --- deltas; None adds nothing ---

    def _text(self, event: e.TextDelta) -> _Delta:
        text = self._content.add(event.output_index, event.content_index, event.delta)
        return CompletionDelta(content=text) if text or event.logprobs else None

    def _refuse(self, event: e.RefusalDelta) -> _Delta:
        text = self._refusal.add(event.output_index, event.content_index, event.delta)
        return CompletionDelta(refusal=text) if text else None

    def _think(self, event: e.ReasoningDelta) -> _Delta:
        text = self._thoughts.add(event.output_index, 0, event.delta)
        return CompletionDelta(reasoning_content=text, reasoning=text) if text else None

    def _cite(self, event: e.AnnotationAdded) -> _Delta:
        start = self._content.start_of(event.output_index, event.content_index)
        citation = citation_of(event.annotation, start)
        return None if citation is None else CompletionDelta(annotations=(citation,))

    def _close(self, event: e.ItemDone) -> _Delta:
        if not isinstance(event.item, McpApprovalRequest):
            return None
        text = unapproved(event.item, api=API)
        return CompletionDelta(refusal=self._refusal.add(event.output_index, 0, text))

    def _open(self, event: e.ItemAdded) -> _Delta:
        item = event.item
        if not isinstance(item, FunctionCall | CustomToolCall):
            return None
        number = self._calls[event.output_index] = len(self._calls)
        if isinstance(item, CustomToolCall):
            custom = CompletionCustom(name=item.name, input="")
            call = CompletionCall(index=number, id=item.call_id, type="custom", custom=custom)
            return CompletionDelta(tool_calls=(call,))
        function = CompletionFunction(name=item.name, arguments="")
        call = CompletionCall(index=number, id=item.call_id, type="function", function=function)
        return self._call(call)

    def _argue(self, event: e.ArgumentsDelta) -> _Delta:
        function = CompletionFunction(arguments=event.delta)
        return self._call(CompletionCall(index=self._calls[event.output_index], function=function))

    def _input(self, event: e.CustomInputDelta) -> _Delta:
        custom = CompletionCustom(input=event.delta)
        call = CompletionCall(index=self._calls[event.output_index], custom=custom)
        return CompletionDelta(tool_calls=(call,))

    def _call(self, call: CompletionCall) -> _Delta:
        if not self._view.legacy_calls:
            return CompletionDelta(tool_calls=(call,))
        return None if call.index else CompletionDelta(function_call=call.function)


class ChoicesEncoder(EventEncoder):
    """Encodes the events of several responses, each as a choice of one completion."""

    def __init__(self, view: ChatView, count: int) -> None:
        self._view = view
        choices = Choices(count)
        self._each = [ChatEncoder(view, number, choices) for number in range(count)]
        self._selected = self._each[0]

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
        """`value` is a list of all responses."""
        return _encode(completion_of(*value, view=self._view))


_DELTAS: Mapping[type[e.Event], Any] = {
    e.TextDelta: ChatEncoder._text,
    e.RefusalDelta: ChatEncoder._refuse,
    e.ReasoningDelta: ChatEncoder._think,
    e.AnnotationAdded: ChatEncoder._cite,
    e.ItemAdded: ChatEncoder._open,
    e.ItemDone: ChatEncoder._close,
    e.ArgumentsDelta: ChatEncoder._argue,
    e.CustomInputDelta: ChatEncoder._input,
}
