"""The body of `POST /v1/completions`: its fields with types and limits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from antiphon.domain.bounds import Long, Text, TokenId
from antiphon.domain.requests.request import SharedFields, TopLogprobs
from antiphon.entrypoints.http.doors.chat.request import ChatStreamOptions

MAX_ANSWERS = 128
"""Of one request: prompts, times the answers to each."""

Answers = Annotated[int, Meta(ge=1, le=MAX_ANSWERS)]


class CompletionRequest(SharedFields, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`.

    `prompt` is a text or its tokens, or a list of either. `max_tokens` may be 0: then `echo` gives
    the prompt alone, with the log probabilities of its tokens.
    """

    prompt: Text | Long[Text | TokenId | Long[TokenId]]
    suffix: Text | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    n: Answers | None = None
    best_of: Answers | None = None
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    stream_options: ChatStreamOptions | None = None
