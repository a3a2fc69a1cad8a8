"""Read a turn's chunks: text, reasoning, refusals, calls, logprobs, usage and the reason to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.adapters.models.chat_completions.call_writer import CallWriter
from antiphon.adapters.models.chat_completions.chunks import CallPiece, Choice, Chunk, MessagePiece
from antiphon.adapters.models.chat_completions.options import Think
from antiphon.adapters.models.chat_completions.think_tags import ThinkTags
from antiphon.adapters.models.chat_completions.usage import UsageMeter
from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain.content import Logprob, TopLogprob
from antiphon.domain.errors import EngineError
from antiphon.domain.json import Json

FINISH_REASONS: Mapping[str, d.EndReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "safety": "content_filter",
}
"""The server's reason to end -> the turn's. Others are spellings of `stop`."""

FAILURES = frozenset({"abort", "error", "network_error", "insufficient_system_resource"})
"""Reasons to end with which a server says that it failed."""

REASONING_KEYS = ("reasoning_content", "reasoning")


class ChunkReader:
    """Reads the chunks of one turn into deltas.

    The same chunks give the same deltas, however they arrive. `chunks` counts those with a choice,
    some of which are tokens without a text. `reasoning_key` is the field in which
    the server sent reasoning, None if it sent none.
    """

    def __init__(self, turn: Turn, meter: UsageMeter, *, think: Think = "field") -> None:
        self._meter = meter
        self.think = think
        self._calls = CallWriter(turn)
        self._tags = None if think == "field" else ThinkTags(is_open=think == "open")
        self._wants_logprobs = turn.sampling.logprobs is not None
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._refusals: list[str] = []
        self._finish: str | None = None
        self._blanks: list[d.Delta] = []
        self._is_in_text = False
        self.chunks = 0
        self.reasoning_key: str | None = None

    @property
    def finish(self) -> d.EndReason | None:
        """Why the turn ended, as in TurnEnd; None if the server has not said so."""
        return None if self._finish is None else FINISH_REASONS.get(self._finish, "stop")

    @property
    def has_calls(self) -> bool:
        return self._calls.has_calls

    @property
    def has_output(self) -> bool:
        return bool(self._texts or self._reasoning or self._refusals or self._calls.calls)

    def feed(self, chunk: Chunk) -> list[d.Delta]:
        """Return what is new. Raises: EngineError if the server says that it failed."""
        if chunk.is_error:
            raise EngineError("The model server failed while it wrote the answer.")
        if chunk.usage is not None:
            self._meter.report(chunk.usage)
        if not chunk.choices:
            return []
        self.chunks += 1
        choice = chunk.choices[0]
        piece = choice.delta or choice.message
        deltas = [] if piece is None else self._read(piece, choice)
        if isinstance(choice.finish_reason, str) and choice.finish_reason:
            self._finish = choice.finish_reason
            if self._finish in FAILURES:
                raise EngineError("The model server could not finish the answer.")
        return deltas

    def end(self) -> list[d.Delta]:
        """Return what was held back."""
        held = self._without_blank_messages(self._tags.end()) if self._tags else []
        deltas = self._calls.add_text(held)
        return [*deltas, *self._calls.end(is_cut=self.finish not in (None, "stop"))]

    def message(self) -> Json:
        """Return the answer so far as a message of Chat Completions."""
        message: Json = {"role": "assistant", "content": "".join(self._texts) or None}
        if self._reasoning:
            message[self.reasoning_key or REASONING_KEYS[0]] = "".join(self._reasoning)
        if self._refusals:
            message["refusal"] = "".join(self._refusals)
        if self._calls.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self._calls.calls
            ]
        return message

    def _read(self, piece: MessagePiece, choice: Choice) -> list[d.Delta]:
        deltas: list[d.Delta] = []
        content, thinking = _texts_of(piece.content)
        reasoning = self._reasoning_of(piece) or thinking
        if reasoning:
            self._meter.reasoning_pieces += 1
            self._reasoning.append(reasoning)
            deltas.append(d.ReasoningDelta(reasoning))
        if content:
            self._texts.append(content)
            deltas += self._text_deltas(content, choice)
        if isinstance(piece.refusal, str) and piece.refusal:
            self._refusals.append(piece.refusal)
            deltas.append(d.RefusalDelta(piece.refusal))
        if deltas:
            deltas = self._calls.add_text(self._without_blank_messages(deltas))
        calls = piece.tool_calls
        if isinstance(calls, CallPiece):
            calls = [calls]
        if piece.function_call is not None and not calls:
            calls = [CallPiece(index=0, function=piece.function_call)]
        if calls:
            self._blanks.clear()
            self._is_in_text = False
            deltas += self._calls.feed(calls)
        if reasoning or content or calls or piece.refusal:
            self._meter.pieces += 1
        return deltas

    def _without_blank_messages(self, deltas: Sequence[d.Delta]) -> list[d.Delta]:
        """Hold back spaces and line ends until the text goes on: servers send them around calls."""
        passed: list[d.Delta] = []
        for delta in deltas:
            is_text = isinstance(delta, d.TextDelta)
            if isinstance(delta, d.TextDelta) and not self._is_in_text and delta.text.isspace():
                self._blanks.append(delta)
                continue
            passed += [*(self._blanks if is_text else ()), delta]
            self._blanks.clear()
            self._is_in_text = is_text
        return passed

    def _reasoning_of(self, piece: MessagePiece) -> str:
        # Some servers send both, with the same text.
        for key in REASONING_KEYS:
            text = getattr(piece, key)
            if isinstance(text, str) and text:
                self.reasoning_key = key
                return text
        return ""

    def _text_deltas(self, content: str, choice: Choice) -> Sequence[d.Delta]:
        if self._tags is not None:
            deltas = self._tags.feed(content)
            self._meter.reasoning_pieces += any(isinstance(x, d.ReasoningDelta) for x in deltas)
            if not self._wants_logprobs or [type(delta) for delta in deltas] != [d.TextDelta]:
                return deltas
            [text] = [delta.text for delta in deltas if isinstance(delta, d.TextDelta)]
            return [d.TextDelta(text, _logprobs_of(choice) if text == content else ())]
        logprobs = _logprobs_of(choice) if self._wants_logprobs else ()
        return [d.TextDelta(content, logprobs)]


def _texts_of(content: Any) -> tuple[str, str]:
    """Return the text and the reasoning in a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    text = reasoning = ""
    for part in content:
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            if isinstance(part.get("text"), str):
                text += part["text"]
            reasoning += _texts_of(part.get("thinking"))[0]
    return text, reasoning


class _TokenLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None
    top_logprobs: list[_TokenLogprob] | None = None

    @property
    def token_bytes(self) -> tuple[int, ...]:
        return tuple(self.token.encode() if self.bytes is None else self.bytes)


def _logprobs_of(choice: Choice) -> tuple[Logprob, ...]:
    if choice.logprobs is None or not choice.logprobs.content:
        return ()
    try:
        tokens = msgspec.convert(choice.logprobs.content, list[_TokenLogprob])
    except msgspec.ValidationError:
        raise EngineError("The model server sent logprobs that cannot be read.") from None
    return tuple(
        Logprob(
            token=each.token,
            logprob=each.logprob,
            bytes=each.token_bytes,
            top_logprobs=tuple(
                TopLogprob(token=other.token, logprob=other.logprob, bytes=other.token_bytes)
                for other in each.top_logprobs or ()
            ),
        )
        for each in tokens
    )
