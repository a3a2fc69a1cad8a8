"""What single tokens spell: their text, and their exact bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def _byte_alphabet() -> dict[str, int]:
    """Return the characters that byte-level vocabularies (GPT-2's and all since) write bytes with.

    Printable bytes stand for themselves; the others got the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}


BYTE_OF = _byte_alphabet()


class TokenDecoder:
    """Spells token ids with a tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Bounded: alternatives of many runs would otherwise fill it with the whole vocabulary.
        self.decode_token = lru_cache(maxsize=32_768)(self._spell)

    def _spell(self, token_id: int) -> tuple[str, tuple[int, ...]]:
        """Return the token's text and bytes; a part of a character has only its bytes right."""
        exact = self._bytes(token_id)
        return exact.decode("utf-8", errors="replace"), tuple(exact)

    def _bytes(self, token_id: int) -> bytes:
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        piece: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        if piece is None:  # a row of the embedding without a token: models pad their vocabulary
            return b""
        if REPLACEMENT in text:
            if piece.startswith("<0x") and piece.endswith(">"):  # sentencepiece's single bytes
                return bytes([int(piece[3:-1], 16)])
            if all(char in BYTE_OF for char in piece):
                return bytes(BYTE_OF[char] for char in piece)
        if piece.startswith("\u2581") and not text.startswith(" "):
            text = " " + text  # sentencepiece drops the space of a text's first token
        return text.encode()
