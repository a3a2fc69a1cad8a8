"""Read the label in a tag: the name of a call or an argument, and what else stands there."""

from __future__ import annotations

import re

from msgspec import Struct

from antiphon.adapters.formats.chat_template.families.family import Tags
from antiphon.adapters.formats.chat_template.payloads.calls import MAX_NAME_LENGTH

ATTRIBUTE = re.compile(
    r"""[\sĠ]*(?:(?:name\s*)?=+|name(?=\s*["']))?\s*(?:"(?P<quoted>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>.+?))\s*"""
    r"""(?:string\s*=*\s*["']?(?P<string>true|false)["']?\s*)?/?""",
    re.DOTALL,
)
CUT_NAME = re.compile(
    r"""\s*+(?:(?:name\s*+)?=)?\s*+["']?[\w.$-]*["']?\s*+"""
    r"""(?:string\s*+=?\s*+["']?[a-z]*["']?\s*+)?/?"""
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


def is_cut_tag(text: str, tags: Tags) -> bool:
    """Whether a text is the start of what ends a call, or of the tag of a key."""
    return (
        tags.call_end.startswith(text)
        or tags.key.startswith(text)
        or (text.startswith(tags.key) and _is_cut_key(text.removeprefix(tags.key), tags))
    )


def _is_cut_key(text: str, tags: Tags) -> bool:
    name, bracket, tag = text.partition("<")
    expected = f"{tags.key_end}{tags.value}"
    return (
        len(name) <= MAX_NAME_LENGTH
        and CUT_NAME.fullmatch(name) is not None
        and expected.startswith(bracket + "".join(tag.split()))
    )
