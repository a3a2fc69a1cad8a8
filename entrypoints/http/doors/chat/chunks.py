"""Events as the chunks of Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.domain import events as e
from antiphon.domain.content import Logprob
from antiphon.domain.items import FunctionCall
from antiphon.domain.kinds.custom import CustomToolCall
from antiphon.domain.kinds.mcp import McpApprovalRequest
from antiphon.domain.responses.response import Response
from antiphon.entrypoints.http.doors.chat.completion import (
    API,
    ChatCompletion,
    ChatView,
    ChoiceLogprobs,
    CompletionCall,
    CompletionCustom,
    CompletionDelta,
    CompletionFunction,
    FinishReason,
    citation_of,
    completion_id,
    completion_of,
    finish_reason_of,
)
from antiphon.entrypoints.http.doors.choices import ChoiceEncoder, Choices
from antiphon.entrypoints.http.doors.joined_text import Joined
from antiphon.entrypoints.http.doors.server_tools import unapproved

_encode = msgspec.json.Encoder().encode
_Delta = CompletionDelta | None


class ChatEncoder(ChoiceEncoder):
    """Encodes the events of one response as chunks, or the response as a completion."""

    before_text = b'"delta":{"content":'
    after_text = b"}"
    nothing = b'"delta":{}'

    def __init__(self, view: ChatView, number: int = 0, choices: Choices | None = None) -> None:
        super().__init__(number, choices, view.usage)
        self._view = view
        self._refusal = Joined()
        self._thoughts = Joined()
        self._calls: dict[int, int] = {}
        """The number of each call, by the place of its item in the output."""

    def object_of(self, responses: Sequence[Response]) -> ChatCompletion:
        return completion_of(responses, view=self._view)

    def shared_of(self, response: Response, response_id: str) -> Mapping[str, Any]:
        return {
            "id": completion_id(response_id),
            "object": "chat.completion.chunk",
            "created": response.created_at,
            "model": response.model,
            "service_tier": response.service_tier,
        }

    def opening(self) -> bytes:
        return _delta(CompletionDelta(role="assistant", content=""))

    def addition(self, event: e.Event) -> bytes | None:
        read = _DELTAS.get(type(event))
        delta = None if read is None else read(self, event)
        return None if delta is None else _delta(delta)

    def logprobs_of(self, logprobs: Sequence[Logprob]) -> ChoiceLogprobs:
        return ChoiceLogprobs(content=tuple(logprobs))

    def reason_of(self, response: Response) -> FinishReason:
        return finish_reason_of(response, self._view)

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


def _delta(delta: CompletionDelta) -> bytes:
    return b'"delta":' + _encode(delta)


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
