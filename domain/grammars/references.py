"""References within a JSON schema (`$ref`)."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


def resolve(root: Any, reference: str) -> Any:
    """Return the part of a schema that a reference within it names (RFC 6901).

    Raises: LookupError if there is none.

    >>> resolve({"$defs": {"a/b": [{"type": "null"}]}}, "#/$defs/a~1b/0")
    {'type': 'null'}
    """
    place = root
    for part in unquote(reference).removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and name in place:
            place = place[name]
        elif isinstance(place, list | tuple) and name.isdecimal() and int(name[:9]) < len(place):
            place = place[int(name[:9])]
        else:
            raise LookupError(reference)
    return place
