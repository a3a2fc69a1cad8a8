"""Splits tokens, a prompt or an output, into Harmony messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.adapters.formats.harmony.header import CONTINUED, Header, Piece, read_header
from antiphon.application.ports import Json

ROLES = ("system", "developer", "user", "assistant")

_CONSTRAINED = "<|constrain|>"
_ENDS = frozenset(h.STOPS) | {h.END}


class RawMessage(Struct, frozen=True):
    """A message with its tokens; one without `<|message|>` has a header but no content."""

    header: Header
    text: str
    tokens: Sequence[int]
    has_content: bool


def split_messages(encoding: Encoding, token_ids: Sequence[int]) -> Iterator[RawMessage]:
    """Yield the messages in order; their tokens, joined, are `token_ids`."""
    start = 0
    for position, token in enumerate(token_ids):
        if token == h.START and position > start:
            yield _read_message(encoding, token_ids[start:position])
            start = position
        elif token in _ENDS:
            yield _read_message(encoding, token_ids[start : position + 1])
            start = position + 1
    if start < len(token_ids):
        yield _read_message(encoding, token_ids[start:])


def to_json(message: RawMessage) -> Json:
    """Return the message in the shape that vLLM uses."""
    header = message.header
    role = header.role if header.role in ROLES else "tool"
    message_json: Json = {"role": role}
    if role == "tool":
        message_json["name"] = header.role
    content_type = header.content_type or ""
    optional = {
        "channel": header.channel,
        "recipient": header.recipient,
        "content_type": _CONSTRAINED + content_type if header.is_constrained else content_type,
    }
    message_json |= {key: value for key, value in optional.items() if value}
    message_json["content"] = [{"type": "text", "text": message.text}]
    return {"type": "raw_message_tokens", "message": message_json, "tokens": list(message.tokens)}


def _read_message(encoding: Encoding, tokens: Sequence[int]) -> RawMessage:
    body = tokens
    has_content = h.MESSAGE in tokens
    pieces: list[Piece] = []
    if has_content or tokens[0] in (h.START, h.CHANNEL):
        cut = tokens.index(h.MESSAGE) if has_content else len(tokens)
        pieces = _header_pieces(encoding, tokens[:cut])
        body = tokens[cut + 1 :]
    end = len(body) - 1 if body and body[-1] in _ENDS else len(body)
    text = encoding.text(body[:end])
    return RawMessage(read_header(pieces), text, tokens, has_content or bool(text))


def _header_pieces(encoding: Encoding, tokens: Sequence[int]) -> list[Piece]:
    pieces: list[Piece] = []
    introducer, words = CONTINUED, list[int]()
    for token in tokens:
        if token in (h.START, h.CHANNEL, h.CONSTRAIN):
            pieces.append((introducer, encoding.text(words)))
            introducer, words = token, []
        elif token not in _ENDS:
            words.append(token)
    pieces.append((introducer, encoding.text(words)))
    return [(kind, text) for kind, text in pieces if text or kind != CONTINUED]
