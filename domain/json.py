"""The type of JSON objects."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

Json = Annotated[dict[str, Any], Meta(max_length=2**30)]
"""A JSON object of any shape. The settings bound its depth and its values."""
