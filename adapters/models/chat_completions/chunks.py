"""The answers of Chat Completions servers, as Structs with only the fields that are read.

Servers differ in the types of many fields: what may be anything is `Any`, and read with care.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from antiphon.domain.errors import EngineError


class FunctionPiece(Struct, gc=False):
    """A part of a function's call; `arguments` is JSON text, or its value already decoded."""

    name: Any = None
    arguments: Any = None


class CallPiece(Struct, gc=False):
    index: Any = None
    id: Any = None
    function: FunctionPiece | None = None


class MessagePiece(Struct, gc=False):
    """A part of the assistant's message, or all of it."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: list[CallPiece] | CallPiece | None = None
    function_call: FunctionPiece | None = None


class LogprobList(Struct, gc=False):
    """Only as many of them are decoded as the client wants."""

    content: list[msgspec.Raw] | None = None


class Choice(Struct, gc=False):
    delta: MessagePiece | None = None
    message: MessagePiece | None = None
    finish_reason: Any = None
    logprobs: LogprobList | None = None


class PromptDetails(Struct, gc=False):
    cached_tokens: Any = None


class CompletionDetails(Struct, gc=False):
    reasoning_tokens: Any = None


class UsageCounts(Struct, gc=False):
    """Numbers as the server says them; `UsageMeter` says which of them can be true."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: Any = None
    cached_tokens: Any = None
    reasoning_tokens: Any = None


class Chunk(Struct, gc=False):
    """A chunk, or an error: `error` has it, or its fields stand there by themselves."""

    choices: list[Choice] | None = None
    usage: UsageCounts | None = None
    error: Any = None
    message: Any = None
    error_message: Any = None

    @property
    def is_error(self) -> bool:
        if self.error is not None:
            return True
        return self.choices is None and (self.message or self.error_message) is not None

    @property
    def failure(self) -> Any:
        """Return what an error says, in any of the shapes that servers have for it."""
        return next(
            each for each in (self.error, self.message, self.error_message) if each is not None
        )


_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Raises: EngineError, whose message repeats nothing of the data."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The model server sent an event that cannot be read.") from None
