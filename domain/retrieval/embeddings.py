"""Requests for vectors of texts (docs/guides/embeddings.md)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.domain.bounds import Id, Name, Text, TokenId
from antiphon.domain.errors import RequestError

MAX_INPUTS = 2048
"""As in OpenAI's API."""

MAX_TOKENS = 65_536
"""Of one input, or inputs of one number each: longer than any embedding model reads."""

Tokens = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_TOKENS)]
Entries = Annotated[tuple[Text | TokenId | Tokens, ...], Meta(max_length=MAX_TOKENS)]
Inputs = tuple[str, ...] | tuple[tuple[int, ...], ...]


class NewEmbeddings(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/embeddings`. `input` is a text, texts, tokens, or lists of tokens."""

    model: Name
    input: Text | Entries
    dimensions: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: Id | None = None


def inputs_of(request: NewEmbeddings) -> Inputs:
    """Return what gets a vector each: texts, or the tokens of texts. Raises: RequestError."""
    given = request.input
    entries: Sequence[Any] = (given,) if isinstance(given, str) else given
    if entries and all(isinstance(each, int) for each in entries):
        entries = (entries,)
    if not 1 <= len(entries) <= MAX_INPUTS:
        raise _invalid(f"'input' must hold 1 to {MAX_INPUTS} inputs; this one has {len(entries)}.")
    if len({type(each) for each in entries}) > 1:
        raise _invalid("'input' must be texts alone or tokens alone; this one mixes them.")
    for index, each in enumerate(entries):
        if not each:
            place = "input" if isinstance(given, str) else f"input[{index}]"
            raise _invalid(f"'{place}' is an empty text, which has no vector.", place)
    return tuple(entries)


def shorten(vector: bytes, dimensions: int) -> bytes:
    """Return the first numbers of a vector of float32, scaled to length 1 again.

    Models that are made for it put what matters most into the first numbers (Kusupati et al.,
    "Matryoshka Representation Learning", 2022). Raises: RequestError if the vector is shorter.

    >>> list(array("f", shorten(array("f", (0.6, 0.0, 0.8)).tobytes(), 1)))
    [1.0]
    """
    numbers = array("f", vector)
    if dimensions > len(numbers):
        raise RequestError(
            f"'dimensions' must be at most {len(numbers)}, the length of this model's vectors.",
            param="dimensions",
            code="invalid_value",
        )
    first = numbers[:dimensions]
    length = math.hypot(*first) or 1.0
    return array("f", (each / length for each in first)).tobytes()


def _invalid(message: str, param: str = "input") -> RequestError:
    return RequestError(message, param=param, code="invalid_value")
