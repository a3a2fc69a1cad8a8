"""Bounds of what clients send: generous, but never absent (docs/reference/api.md#limits).

The settings bound a body as a whole, by bytes, depth and values. These bound each part of it. They
are checked when JSON is decoded, so they cost nothing where events are made.

Items and content parts have only the widest bounds, `Text` and `Long`. Models and tool servers
write them too, and a store returns them: with a tighter bound, what is stored could not be read.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec import Meta

T = TypeVar("T")

MAX_MEMBERS = 10_000

Name = Annotated[str, Meta(max_length=1024)]
"""A name, or a word such as a size."""

StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
"""An empty one would end every text before it begins."""

Id = Annotated[str, Meta(max_length=4096)]
"""An id; some gateways seal what they know into theirs."""

Line = Annotated[str, Meta(max_length=65_536)]
"""A URL, a header or a credential."""

Text = Annotated[str, Meta(max_length=2**30)]
"""Text of people, models and tools: in effect, as long as the settings allow."""

Many = Annotated[tuple[T, ...], Meta(max_length=MAX_MEMBERS)]

Long = Annotated[tuple[T, ...], Meta(max_length=2**30)]
"""A list that grows with what a model writes."""

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
MAX_COUNT = 2**31
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
TokenId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Weight = Annotated[float, Meta(ge=0, le=1_000_000)]

MAX_LOGPROBS = 100_000
"""Tokens and alternatives together, of one response: 4,700 tokens with 20 alternatives each. They
take 25 MB, and a request that shows them makes every other client wait for 20 to 40 ms."""

MAX_CONTEXT_LENGTH = 100_000_000
"""Tokens; the longest contexts of today have a tenth of it."""


def count_of(value: Any, *, least: int = 0, most: int = MAX_COUNT) -> int | None:
    """Return a number that another server has sent, or None if it cannot be a count.

    >>> count_of(12), count_of(12.0), count_of(-1), count_of(2**63), count_of("12"), count_of(True)
    (12, 12, None, None, None, None)
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and least <= value <= most else None
