"""Decodes single tokens to their text and their exact bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def _byte_alphabet() -> dict[str, int]:
    """Return the characters that stand for bytes in byte-level vocabularies (GPT-2's and later).

    Printable bytes stand for themselves; the others have the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}


BYTE_OF_CHARACTER = _byte_alphabet()


class TokenDecoder:
    """Decodes token ids with a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Bounded: otherwise the top logprobs of many runs would fill it with the whole vocabulary.
        self.decode_token = lru_cache(maxsize=32_768)(self._decode)

    def _decode(self, token_id: int) -> tuple[str, tuple[int, ...]]:
        """Return the token's text and bytes; only the bytes are exact for a part of a character."""
        token_bytes = self._bytes_of(token_id)
        return token_bytes.decode("utf-8", errors="replace"), tuple(token_bytes)

    def _bytes_of(self, token_id: int) -> bytes:
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        piece: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        if piece is None:  # an embedding row without a token: models pad their vocabulary
            return b""
        if REPLACEMENT in text:
            if piece.startswith("<0x") and piece.endswith(">"):  # sentencepiece's single bytes
                return bytes([int(piece[3:-1], 16)])
            if all(char in BYTE_OF_CHARACTER for char in piece):
                return bytes(BYTE_OF_CHARACTER[char] for char in piece)
        if piece.startswith("\u2581") and not text.startswith(" "):
            text = " " + text  # sentencepiece drops the space of a text's first token
        return text.encode()
