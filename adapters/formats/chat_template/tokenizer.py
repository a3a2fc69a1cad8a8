"""The tokenizer that a chat-template format needs, and adapters for those of two libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from antiphon.adapters.extras import install_command
from antiphon.domain.errors import SettingsError


class Tokenizer(Protocol):
    """Converts text to tokens and back, without adding or dropping anything."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the tokens of `text`; if `special`, markers in it become special tokens."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, as `encode` does with `special`.

        It does not hold the interpreter's lock if `encodes_without_lock`. Thread-safe.
        """
        return [self.encode(text, special=True) for text in texts]

    @property
    def start_ids(self) -> Sequence[int]:
        """The tokens that begin a prompt without a template: by default, none."""
        return ()

    def begin_text(self, ids: list[int]) -> list[int]:
        """Return the tokens of a whole prompt, which begin with `start_ids`, but not twice."""
        start = [*self.start_ids]
        return ids if ids[: len(start)] == start else start + ids

    @property
    def encodes_without_lock(self) -> bool:
        return False

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of the tokens, special ones included."""

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that is exactly this marker, if there is one."""

    def added_tokens(self) -> Mapping[str, bool]:
        """Return the texts that always become one token, each with whether it is a special token.

        With `special`, `encode` takes them out of a text before it splits the rest.
        """


class FolderTokenizer(Tokenizer):
    """A model folder's `tokenizer.json`."""

    # Markers always become special tokens here; marker_cutter.py protects the texts that are none.

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, file: Path) -> FolderTokenizer:
        """Load a file. Raises: SettingsError without the library or a valid file."""
        try:
            from tokenizers import Tokenizer as Loader  # the `chat` extra
        except ImportError:
            raise SettingsError(
                "Reading a model folder needs a package. Install it with: "
                f"{install_command('chat')}"
            ) from None
        if not file.is_file():
            raise SettingsError(f"no tokenizer.json in {str(file.parent)!r}")
        try:
            return cls(Loader.from_file(str(file)))
        except Exception as error:  # the library raises bare exceptions
            raise SettingsError(f"{str(file)!r} is not a tokenizer: {error}") from error

    def encode(self, text: str, *, special: bool) -> list[int]:  # noqa: ARG002 - see above
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return _encode_without_lock(self._tokenizer, texts)

    @cached_property
    def start_ids(self) -> Sequence[int]:
        return _start_of(self._tokenizer.encode("a").ids, self.encode("a", special=True))

    encodes_without_lock = True

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def token_id(self, text: str) -> int | None:
        token: int | None = self._tokenizer.token_to_id(text)
        return token

    def added_tokens(self) -> Mapping[str, bool]:
        return _special_by_text(self._tokenizer.get_added_tokens_decoder())


class HfTokenizer(Tokenizer):
    """A tokenizer object of transformers, or of an engine that wraps one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._unknown = getattr(tokenizer, "unk_token_id", None)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._fast_tokenizer = backend if hasattr(backend, "encode_batch") else None

    def encode(self, text: str, *, special: bool) -> list[int]:  # noqa: ARG002 - as FolderTokenizer
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        if self._fast_tokenizer is None:
            return super().encode_all(texts)
        return _encode_without_lock(self._fast_tokenizer, texts)

    @cached_property
    def start_ids(self) -> Sequence[int]:
        whole = self._tokenizer.encode("a", add_special_tokens=True)
        return _start_of(list(whole), self.encode("a", special=True))

    @property
    def encodes_without_lock(self) -> bool:
        return self._fast_tokenizer is not None

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def token_id(self, text: str) -> int | None:
        token = self._tokenizer.convert_tokens_to_ids(text)
        return token if isinstance(token, int) and token != self._unknown else None

    def added_tokens(self) -> Mapping[str, bool]:
        return _special_by_text(getattr(self._tokenizer, "added_tokens_decoder", {}))


def _start_of(whole: list[int], inner: list[int]) -> list[int]:
    """Return the tokens before those of the text itself."""
    places = range(len(whole) - len(inner) + 1)
    return next((whole[:place] for place in places if whole[place:][: len(inner)] == inner), [])


def _encode_without_lock(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    # `encode` holds the interpreter's lock. The fast variant leaves out offsets, which we drop.
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return [encoding.ids for encoding in encode(list(texts), add_special_tokens=False)]


def _special_by_text(by_id: Mapping[int, Any]) -> Mapping[str, bool]:
    return {token.content: token.special for token in by_id.values()}
