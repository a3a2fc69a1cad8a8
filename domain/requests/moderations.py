"""Requests for the moderation of texts (docs/guides/guards.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from antiphon.domain.bounds import Name, Text
from antiphon.domain.errors import RequestError

MAX_INPUTS = 32
"""As in OpenAI's API for several texts."""

MAX_CHARS = 262_144
"""Of all texts of a request together."""


class ModerationText(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: Text


class NewModeration(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/moderations`. `input` is a text, texts, or the parts of one."""

    input: Text | Annotated[tuple[Text | ModerationText, ...], Meta(max_length=MAX_INPUTS)]
    model: Name | None = None


def texts_of(request: NewModeration) -> Sequence[str]:
    """Return what gets a result each: texts; parts are one text. Raises: RequestError.

    >>> texts_of(NewModeration(input=("a", "b"))), texts_of(NewModeration(input="a"))
    (('a', 'b'), ('a',))
    >>> texts_of(NewModeration(input=(ModerationText(text="a"), ModerationText(text="b"))))
    ('a\\nb',)
    """
    given = request.input
    entries = (given,) if isinstance(given, str) else given
    texts = tuple([entry for entry in entries if isinstance(entry, str)])
    parts = [entry.text for entry in entries if not isinstance(entry, str)]
    if texts and parts:
        raise _invalid("'input' must be texts alone or parts alone; this one mixes them.")
    texts = texts or (("\n".join(parts),) if parts else ())
    if not texts:
        raise _invalid("'input' must hold at least one text.")
    if (length := sum(map(len, texts))) > MAX_CHARS:
        raise _invalid(f"'input' has {length} characters; {MAX_CHARS} are allowed.")
    return texts


def _invalid(message: str) -> RequestError:
    return RequestError(message, param="input", code="invalid_value")
