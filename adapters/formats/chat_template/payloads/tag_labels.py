"""Read the label in a tag: the name of a call or an argument, and what else stands there."""

from __future__ import annotations

import re

from msgspec import Struct

ATTRIBUTE = re.compile(
    r"""[\sĠ]*(?:(?:name\s*)?=+|name(?=\s*["']))?\s*(?:"(?P<quoted>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>.+?))\s*"""
    r"""(?:string\s*=*\s*["']?(?P<string>true|false)["']?\s*)?/?""",
    re.DOTALL,
)


class TagLabel(Struct, frozen=True):
    """An argument's name; `is_text` is what the tag says of its value, None if nothing."""

    name: str
    is_text: bool | None = None
    is_damaged: bool = False


def read_label(text: str, *, is_attribute: bool) -> TagLabel:
    """Return the name in a tag, as its text or as an attribute of it."""
    match = ATTRIBUTE.fullmatch(text) if is_attribute else None
    if match is None:
        return TagLabel(text.strip())
    name = match["quoted"] or match["single"] or (match["bare"] or "").strip("\"' ")
    return TagLabel(name, None if match["string"] is None else match["string"] == "true")
