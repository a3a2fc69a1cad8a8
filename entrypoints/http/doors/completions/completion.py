"""Events and responses as completions: each response is a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.domain import events as e
from antiphon.domain.content import Logprob, OutputText
from antiphon.domain.items import Message
from antiphon.domain.responses.response import Response
from antiphon.entrypoints.http.doors.choices import (
    ChoiceEncoder,
    Choices,
    CompletionUsage,
    UsageView,
    usage_of,
)

TextReason = Literal["stop", "length", "content_filter"]

_encode = msgspec.json.Encoder().encode
_decode_logprob = msgspec.json.Decoder(Logprob).decode


class CompletionView(Struct, frozen=True, kw_only=True):
    """The sight that a client has of its answers.

    `echoes`: they begin with the prompt. `to_prompt`: how many there are to a prompt.
    """

    echoes: bool = False
    to_prompt: int = 1
    usage: UsageView = UsageView()


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


class TokenPlaces:
    """Counts where the tokens of one text begin."""

    def __init__(self, *, echoes: bool) -> None:
        self._is_first = echoes
        self._offset = 0

    def logprobs(self, logprobs: Sequence[Logprob]) -> TextLogprobs:
        """Return those of the next tokens."""
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


class CompletionEncoder(ChoiceEncoder):
    """Encodes the events of one response as chunks of a completion, or the response as one."""

    before_text = b'"text":'
    after_text = b""
    nothing = b'"text":""'

    def __init__(
        self, view: CompletionView, number: int = 0, choices: Choices | None = None
    ) -> None:
        super().__init__(number, choices, view.usage)
        self._view = view
        self._places = TokenPlaces(echoes=view.echoes)

    def object_of(self, responses: Sequence[Response]) -> TextCompletion:
        return completion_of(responses, self._view)

    def shared_of(self, response: Response, response_id: str) -> Mapping[str, Any]:
        return {
            "id": completion_id(response_id),
            "object": "text_completion",
            "created": response.created_at,
            "model": response.model,
        }

    def addition(self, event: e.Event) -> bytes | None:
        if not isinstance(event, e.TextDelta):
            return None
        text = self._content.add(event.output_index, event.content_index, event.delta)
        return self.before_text + _encode(text)

    def logprobs_of(self, logprobs: Sequence[Logprob]) -> TextLogprobs:
        return self._places.logprobs(logprobs)

    def reason_of(self, response: Response) -> TextReason:
        return finish_reason_of(response)


def completion_of(responses: Sequence[Response], view: CompletionView) -> TextCompletion:
    """Return the completion whose choices are these finished responses; the first gives its id."""
    first = responses[0]
    return TextCompletion(
        id=completion_id(first.id),
        created=first.created_at,
        model=first.model,
        choices=tuple(_choice_of(each, number, view) for number, each in enumerate(responses)),
        usage=usage_of([each.usage for each in responses], to_prompt=view.to_prompt),
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
        logprobs=TokenPlaces(echoes=view.echoes).logprobs(logprobs) if logprobs else None,
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
