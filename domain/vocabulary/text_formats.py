"""The formats of the final message, and how much a model reasons before it
(docs/reference/api.md#text-formats)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.domain.bounds import Text
from antiphon.domain.json import Json

FormatName = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TextFormat(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class of the formats of the final message (docs/reference/api.md#text-formats)."""


class PlainFormat(TextFormat, frozen=True, kw_only=True, tag="text"):
    pass


class JsonObjectFormat(TextFormat, frozen=True, kw_only=True, tag="json_object"):
    pass


class JsonSchemaFormat(TextFormat, frozen=True, kw_only=True, tag="json_schema"):
    name: FormatName
    description: Text | None = None
    schema: Json
    strict: bool | None = None


AnyFormat = PlainFormat | JsonObjectFormat | JsonSchemaFormat
