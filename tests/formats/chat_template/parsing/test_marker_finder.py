"""How markers are found in a text that arrives in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest

from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
)


def marked(markers: list[str], text: str, cuts: list[int]) -> list[str]:
    """Return the markers found in the text, and the text between them."""
    found: list[str] = []
    buffer = TextBuffer()

    def read() -> Resumable[None]:
        while marker := (yield from buffer.read_until(MarkerFinder(markers), found.append)):
            found.append(f"<{marker}>")

    reader = read()
    next(reader)
    for start, end in pairwise([0, *cuts, len(text)]):
        buffer.write(text[start:end])
        next(reader)
    buffer.closed = True
    next(reader, None)
    return found


@pytest.mark.parametrize(
    ("markers", "text", "found"),
    [
        (["]", "]<end>"], "a]<end>b", ["a", "<]<end>>", "b"]),
        (["]", "]<end>"], "a]<en]", ["a", "<]>", "<en", "<]>"]),
        (["]", "]<end>"], "a]<en", ["a", "<]>", "<en"]),
        ([" ", "</the end>"], "3</the end>", ["3", "<</the end>>"]),
        ([" ", "</the end>"], "3</the en", ["3</the", "< >", "en"]),
        (["a", "ab", "abc"], "abab", ["<ab>", "<ab>"]),
    ],
)
def test_the_longest_marker_is_found_however_the_text_is_cut(
    markers: list[str], text: str, found: list[str]
) -> None:
    for cuts in ([], list(range(1, len(text)))):
        assert "".join(marked(markers, text, cuts)) == "".join(found)
