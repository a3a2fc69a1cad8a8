"""Bounds of what clients send: generous, but never absent (docs/reference/api.md#limits).

The settings bound a body as a whole, by bytes, depth and values. These bound each part of it. They
are checked when JSON is decoded, so they cost nothing where events are made.

Items and content parts have only the widest bounds, `Text` and `Long`. Models and tool servers
write them too, and a store returns them: with a tighter bound, what is stored could not be read.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

T = TypeVar("T")

MAX_MEMBERS = 10_000

Name = Annotated[str, Meta(max_length=1024)]
"""A name, or a word such as a size."""

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
Count = Annotated[int, Meta(ge=0, le=2**31)]
Weight = Annotated[float, Meta(ge=0, le=1_000_000)]
