"""What a chat-template format asks of a tokenizer, and adapters for the two libraries' objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from antiphon.adapters.extras import install_command
from antiphon.domain.errors import SettingsError


class Tokenizer(Protocol):
    """Text to tokens and back; neither adds nor drops anything."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the tokens of `text`; with `special`, markers in it become special tokens."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of the tokens, special ones included."""

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that is exactly this marker, if there is one."""

    def added(self) -> Mapping[str, bool]:
        """Return the texts that become one token wherever they stand, with whether it is special.

        Encoding `special` takes them out of a text before the rest of it is read.
        """


class FolderTokenizer(Tokenizer):
    """A model folder's `tokenizer.json`."""

    # Markers always become special tokens here: what of a prompt is no marker is told in plain.py.

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, file: Path) -> FolderTokenizer:
        """Raises: SettingsError if the library is missing or the file is not a tokenizer."""
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

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def token_id(self, text: str) -> int | None:
        token: int | None = self._tokenizer.token_to_id(text)
        return token

    def added(self) -> Mapping[str, bool]:
        return _added(self._tokenizer.get_added_tokens_decoder())


class HfTokenizer(Tokenizer):
    """A tokenizer object of transformers, or of an engine that wraps one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._unknown = getattr(tokenizer, "unk_token_id", None)

    def encode(self, text: str, *, special: bool) -> list[int]:  # noqa: ARG002 - as FolderTokenizer
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def token_id(self, text: str) -> int | None:
        token = self._tokenizer.convert_tokens_to_ids(text)
        return token if isinstance(token, int) and token != self._unknown else None

    def added(self) -> Mapping[str, bool]:
        return _added(getattr(self._tokenizer, "added_tokens_decoder", {}))


def _added(by_id: Mapping[int, Any]) -> Mapping[str, bool]:
    return {token.content: token.special for token in by_id.values()}
