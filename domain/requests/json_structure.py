"""Count the values of a JSON text without decoding it.

Decoding is one call that holds the interpreter's lock to its end, and so is freeing what it made.
So a text is counted first, in calls that take some 2 ms each.
"""

from __future__ import annotations

from collections.abc import Iterator

SLICE_BYTES = 128 * 1024
"""How much is handled in one call."""

_COUNTED = (b"[", b"{", b",")
_ALL_BUT_STRUCTURE = bytes(sorted(set(range(256)) - set(b"[]{},")))
# What follows a backslash must stay, so that no other character takes its place.
_PLAIN = bytes(sorted(set(range(256)) - set(b'[]{},"\\/bfnrtu')))


def has_more_values(text: bytes, most: int) -> bool:
    """Return whether a valid JSON text has more values than that, as far as commas and brackets
    tell.

    >>> has_more_values(b'{"a": [1, 2], "b": ",,,,"}', 4), has_more_values(b"[1, 2, 3]", 2)
    (False, True)
    """
    if len(text) <= most or count_values(text) <= most:
        return False
    return count_values(structure_of(text)) > most


def structure_of(text: bytes, *, slice_bytes: int = SLICE_BYTES) -> bytes:
    """Return the brackets and commas of a JSON text that are not in strings."""
    outside: list[bytes] = []
    is_inside = False
    for portion in _portions(text, slice_bytes):
        if b"\\" in portion:  # an escaped quote does not end a string
            portion = portion.translate(None, _PLAIN)  # a third is left to search for two pairs
            portion = portion.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = portion.split(b'"')
        outside.append(b"".join(parts[is_inside::2]).translate(None, _ALL_BUT_STRUCTURE))
        is_inside ^= len(parts) % 2 == 0
    return b"".join(outside)


def count_values(structure: bytes) -> int:
    """Return how many values there are at most; commas and brackets in strings count too."""
    return sum(map(structure.count, _COUNTED))


def _portions(text: bytes, size: int) -> Iterator[bytes]:
    """Yield the text in slices; none ends within an escape."""
    start = 0
    while start < len(text):
        portion = text[start : start + size]
        backslashes = len(portion) - len(portion.rstrip(b"\\"))
        if backslashes % 2:
            portion = text[start : start + size + 1]
        yield portion
        start += len(portion)
