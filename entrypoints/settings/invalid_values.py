"""Explain in words why a value of a settings file is invalid, without showing it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect as mi

_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`\Z", re.DOTALL)
_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


def in_words(error: msgspec.ValidationError, kind: Any) -> str:
    """Return the error of a value that should be of this kind, without the value.

    >>> from typing import Literal
    >>> Door = msgspec.defstruct("Door", [("state", Literal["open", "shut"])])
    >>> try:
    ...     msgspec.convert({"state": "ajar"}, Door)
    ... except msgspec.ValidationError as error:
    ...     in_words(error, Door)
    'state must be open or shut'
    """
    message = str(error)
    at = _AT.search(message)
    subject = at["path"] if at is not None and at["path"] else "it"
    if message.startswith(("Invalid enum value", "Invalid value")):
        *others, last = [*_values_at(mi.type_info(kind), _STEP.findall(subject))] or [""]
        if last:
            before = f"{', '.join(others)} or " if others else ""
            return f"{subject} must be {before}{last}"
    if "matching regex" in message and "https?://" in message:
        return f"{subject} must be an http(s) URL, such as https://host:8000/path, without a user"
    return message


def _values_at(kind: mi.Type, path: list[str]) -> Iterator[str]:
    """Yield the values that are allowed at the path."""
    if isinstance(kind, mi.Metadata):
        yield from _values_at(kind.type, path)
    elif isinstance(kind, mi.UnionType):
        for each in kind.types:
            yield from _values_at(each, path)
    elif not path:
        yield from map(str, kind.values if isinstance(kind, mi.LiteralType) else ())
    elif isinstance(kind, mi.StructType):
        for field in kind.fields:
            if field.encode_name == path[0]:
                yield from _values_at(field.type, path[1:])
    elif isinstance(kind, mi.ListType | mi.VarTupleType | mi.SetType):
        yield from _values_at(kind.item_type, path[1:])
    elif isinstance(kind, mi.DictType):
        yield from _values_at(kind.value_type, path[1:])
