"""Text of tokens that is decoded here: for servers without a tokenizer, and with logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from antiphon.application.ports import Sampling
from antiphon.domain.errors import SettingsError

MIN_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS = 4, 16
"""Tokens of the prompt before the output: some tokens have a space only after another token."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Vocabulary:
    """A model folder's `tokenizer.json`, as far as it is needed to read tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path) -> Vocabulary | None:
        """Return the folder's vocabulary, None without one or without the library.

        It takes a second for a large vocabulary. Raises: SettingsError for a broken file.
        """
        file = folder / "tokenizer.json"
        if not file.is_file() or find_spec("tokenizers") is None:
            return None
        try:
            from tokenizers import Tokenizer

            return cls(Tokenizer.from_file(str(file)))
        except Exception as error:  # the library raises bare exceptions
            raise SettingsError(f"{str(file)!r} cannot be read: {error}") from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        piece: str | None = self.tokenizer.id_to_token(token_id)
        return piece


class RunText:
    """The text of one run."""

    def __init__(self, vocabulary: Vocabulary, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._skips_special = sampling.skip_special_tokens
        self._start()
        for token_id in self._context(vocabulary, prompt):
            self._decode(token_id)

    def feed(self, token_ids: Sequence[int]) -> str:
        """Return the next text."""
        return "".join(map(self._decode, token_ids))

    def _context(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> Sequence[int]:
        """Return the end of the prompt, from where no character is cut."""
        for count in range(MIN_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS + 1):
            end = prompt[-count:]
            if REPLACEMENT not in vocabulary.decode(end, skip_special_tokens=self._skips_special):
                return end
        return ()

    def _start(self) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream = DecodeStream(skip_special_tokens=self._skips_special)

    def _decode(self, token_id: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token_id) or ""
        except Exception:
            # The library cannot continue after some invalid bytes; the text goes on after them.
            self._start()
            return self._stream.step(self._tokenizer, token_id) or ""
