"""Read a turn's chunks: text, reasoning, refusals, calls, logprobs, usage and the reason to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from antiphon.adapters.formats.unmarked_calls import UnmarkedCalls
from antiphon.adapters.models.chat_completions.call_writer import CallWriter
from antiphon.adapters.models.chat_completions.chunks import CallPiece, Choice, Chunk, MessagePiece
from antiphon.adapters.models.chat_completions.errors import failure_message
from antiphon.adapters.models.chat_completions.options import Think
from antiphon.adapters.models.chat_completions.think_tags import ThinkTags
from antiphon.adapters.models.chat_completions.usage import UsageMeter
from antiphon.application.model.output_bounds import OutputBound
from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain.bounds import MAX_COUNT
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

MAX_CHUNK_LOGPROBS = 4_000
"""Tokens and alternatives of one chunk that are read; they take some 20 ms. Streamed chunks have a
few tokens, so only a server that sends its whole answer at once may have more."""

REASONING_KEYS = ("reasoning_content", "reasoning")


UNBOUNDED = OutputBound(max_tokens=MAX_COUNT)


class ChunkReader:
    """Reads the chunks of one turn into deltas.

    The same chunks give the same deltas, however they arrive. `chunks` counts those with a choice,
    some of which are tokens without a text. `is_cut`: they have reached the `bound`. `search`, if
    set, finds calls in the text. `redact` takes secrets out of what the server says of its errors.
    `reasoning_key` is the field in which the server sent reasoning, None if it sent none.
    """

    def __init__(
        self,
        turn: Turn,
        meter: UsageMeter,
        *,
        think: Think = "field",
        bound: OutputBound = UNBOUNDED,
        search: UnmarkedCalls | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._meter = meter
        self._redact = redact
        self.think = think
        self._calls = CallWriter(turn)
        self._search = search
        self._tags = None if think == "field" else ThinkTags(is_open=think == "open")
        self._logprobs = turn.sampling.logprobs
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._refusals: list[str] = []
        self._finish: str | None = None
        self._blanks: list[d.Delta] = []
        self._is_in_text = False
        self._bound = bound
        self._max_chars = bound.max_chars
        self._chars = 0
        self.is_cut = False
        self.chunks = 0
        self.reasoning_key: str | None = None

    @property
    def finish(self) -> d.EndReason | None:
        """Why the turn ended, as in TurnEnd; None if the server has not said so."""
        return None if self._finish is None else FINISH_REASONS.get(self._finish, "stop")

    @property
    def has_calls(self) -> bool:
        return self._calls.has_calls or self.unmarked_calls > 0

    @property
    def unmarked_calls(self) -> int:
        """The number of calls that were found in the text by the `search`."""
        return 0 if self._search is None else self._search.count

    @property
    def has_output(self) -> bool:
        return bool(self._texts or self._reasoning or self._refusals or self._calls.calls)

    def feed(self, chunk: Chunk) -> list[d.Delta]:
        """Return what is new. Raises: EngineError if the server says that it failed."""
        if chunk.is_error:
            raise EngineError(failure_message(chunk.failure, self._redact))
        if chunk.usage is not None:
            self._meter.report(chunk.usage)
        if not chunk.choices or self.is_cut:
            return []
        self.chunks += 1
        choice = chunk.choices[0]
        piece = choice.delta or choice.message
        deltas = [] if piece is None else self._read(piece, choice)
        if self._search is not None and deltas:
            deltas = self._search.feed(deltas)
        if isinstance(choice.finish_reason, str) and choice.finish_reason:
            self._finish = choice.finish_reason
            if self._finish in FAILURES:
                raise EngineError("The model server could not finish the answer.")
        return deltas

    def end(self) -> list[d.Delta]:
        """Return what was held back."""
        held = self._without_blank_messages(self._tags.end()) if self._tags else []
        deltas = self._calls.add_text(held)
        deltas += self._calls.end(is_cut=self.finish not in (None, "stop"))
        if self._search is None:
            return deltas
        return [*self._search.feed(deltas), *self._search.end()]

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
            self._chars += len(piece.refusal)
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
            self._chars += len(reasoning) + len(content)
            pieces, chars = self._meter.pieces, self._chars
            if (pieces > self._bound.max_tokens or chars > self._max_chars) and (
                self._bound.is_exceeded(pieces, chars)
            ):
                self.is_cut, self._finish = True, "length"
                self._meter.pieces = min(pieces, self._bound.max_tokens)
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
            if self._logprobs is None or [type(delta) for delta in deltas] != [d.TextDelta]:
                return deltas
            [text] = [delta.text for delta in deltas if isinstance(delta, d.TextDelta)]
            logprobs = _logprobs_of(choice, self._logprobs) if text == content else ()
            return [d.TextDelta(text, logprobs)]
        logprobs = () if self._logprobs is None else _logprobs_of(choice, self._logprobs)
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


_Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]


class _TokenLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float = 0.0
    bytes: list[_Byte] | None = None
    top_logprobs: list[msgspec.Raw] | None = None

    @property
    def token_bytes(self) -> tuple[int, ...]:
        return tuple(self.token.encode() if self.bytes is None else self.bytes)


_decode_token = msgspec.json.Decoder(_TokenLogprob).decode


def _logprobs_of(choice: Choice, alternatives: int) -> tuple[Logprob, ...]:
    """Return the log probabilities of a chunk, and so many alternatives of each token."""
    if choice.logprobs is None or not choice.logprobs.content:
        return ()
    tokens = choice.logprobs.content[: MAX_CHUNK_LOGPROBS // (1 + alternatives)]
    try:
        return tuple([_to_logprob(_decode_token(token), alternatives) for token in tokens])
    except (msgspec.DecodeError, UnicodeError):
        raise EngineError("The model server sent logprobs that cannot be read.") from None


def _to_logprob(token: _TokenLogprob, alternatives: int) -> Logprob:
    others = map(_decode_token, (token.top_logprobs or ())[:alternatives])
    return Logprob(
        token=token.token,
        logprob=token.logprob,
        bytes=token.token_bytes,
        top_logprobs=tuple(
            [
                TopLogprob(token=other.token, logprob=other.logprob, bytes=other.token_bytes)
                for other in others
            ]
        ),
    )
