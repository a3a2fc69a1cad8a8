"""Find the tokens that llama-server does not send.

It sends an event only when the text ends with a whole character. Of the tokens before, it tells the
number and, with the next event, the text (llama.cpp's `process_token`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from antiphon.adapters.engines.token_decoder import BYTE_OF_CHARACTER

CHARACTER_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHARACTER.items()}


def find_lost(tokenizer: Any, text: str, last: int, count: int, last_bytes: bytes) -> list[int]:
    """Return the `count` tokens of a text that come before its `last` token.

    A text can have several sequences of tokens. The one of the tokenizer is nearly always what the
    model wrote; another one means the same. Without any, there are fewer.
    """
    usual: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    if len(usual) == count + 1 and usual[-1] == last:
        return usual[:-1]
    head = text.encode().removesuffix(last_bytes)
    return next(_splits(tokenizer, head, count), usual[:count])


def _splits(tokenizer: Any, data: bytes, count: int) -> Iterator[list[int]]:
    """Yield the sequences of `count` tokens with these bytes."""

    @cache
    def id_of(piece: bytes) -> int | None:
        names = ["".join(CHARACTER_OF_BYTE[byte] for byte in piece)]
        if len(piece) == 1:
            names.append(f"<0x{piece[0]:02X}>")
        found = (tokenizer.token_to_id(name) for name in names)
        return next((token for token in found if token is not None), None)

    def splits(start: int, left: int) -> Iterator[Sequence[int]]:
        if not left:
            if start == len(data):
                yield ()
            return
        for end in range(len(data) - left + 1, start, -1):
            token = id_of(data[start:end])
            if token is not None:
                yield from ((token, *rest) for rest in splits(end, left - 1))

    if count <= len(data) <= MAX_BYTES:
        yield from map(list, splits(0, count))


MAX_BYTES = 64
"""More is not a part of a few characters."""
