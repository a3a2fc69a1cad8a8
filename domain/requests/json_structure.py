"""Count the values of a JSON text without decoding it.

Decoding is one call that holds the interpreter's lock to its end, and so is freeing what it made.
So a text is counted first, in calls that take some 2 ms each.
"""

from __future__ import annotations

SLICE_BYTES = 128 * 1024
"""How much is handled in one call."""

_COUNTED = (b"[", b"{", b",")
_STRUCTURE = b'"[]{},'
_AFTER_BACKSLASH = b"\\/bfnrtu"
_ALL_BUT_STRUCTURE = bytes(sorted(set(range(256)) - set(_STRUCTURE)))
_ALL_BUT_ESCAPES_TOO = bytes(sorted(set(range(256)) - set(_STRUCTURE + _AFTER_BACKSLASH)))


def has_more_values(text: bytes, most: int) -> bool:
    """Return whether a valid JSON text has more values than that, as far as commas and brackets
    tell.

    >>> has_more_values(b'{"a": [1, 2], "b": ",,,,"}', 4), has_more_values(b"[1, 2, 3]", 2)
    (False, True)
    """
    if len(text) <= most or count_values(text) <= most:
        return False
    return count_values(structure_of(text)) > most


def structure_of(text: bytes) -> bytes:
    """Return the brackets and commas of a JSON text that are not in strings."""
    return _without_strings(_without_words(text))


def count_values(structure: bytes) -> int:
    """Return how many values there are at most; commas and brackets in strings count too."""
    return sum(map(structure.count, _COUNTED))


def _without_words(text: bytes) -> bytes:
    """Return the brackets, commas and quotes of a text; a quote begins or ends a string."""
    # Only C code handles megabytes. First remove everything that is neither structure nor can
    # follow a backslash: it is cheap and leaves little. Then remove escapes, since an escaped quote
    # does not end a string.
    if b"\\" not in text:
        return _in_slices(text, _ALL_BUT_STRUCTURE)
    plain = _in_slices(text, _ALL_BUT_ESCAPES_TOO)
    plain = plain.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _in_slices(plain, _ALL_BUT_STRUCTURE)


def _in_slices(text: bytes, removed: bytes) -> bytes:
    slices = (text[at : at + SLICE_BYTES] for at in range(0, len(text), SLICE_BYTES))
    return b"".join(each.translate(None, removed) for each in slices)


def _without_strings(structure: bytes) -> bytes:
    outside: list[bytes] = []
    is_inside = False
    for at in range(0, len(structure), SLICE_BYTES):
        parts = structure[at : at + SLICE_BYTES].split(b'"')
        outside.append(b"".join(parts[is_inside::2]))
        is_inside ^= len(parts) % 2 == 0
    return b"".join(outside)
