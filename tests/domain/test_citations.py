"""Markers of citations in a text, in whatever pieces it comes."""

from __future__ import annotations

import random

import pytest

from antiphon.domain.citations import LONGEST, Links, Marker, Markers

TEXTS = {
    "one": ("Sunny 【6†L9-L11】.", ["6†L9-L11"]),
    "side by side": ("【1†L1】【2†L2】", ["1†L1", "2†L2"]),
    "none": ("No brackets [1] at all", []),
    "half": ("It ends in 【3†L", []),
    "closed only": ("】a】", []),
    "the last opening counts": ("【【3†L1】", ["3†L1"]),
    "nested": ("【a【b】c】", ["b"]),
    "empty": ("【】", []),
    "astral": ("😀😀【1†L1】", ["1†L1"]),
    "as long as can be": (f"【{'x' * LONGEST}】", ["x" * LONGEST]),
    "too long": (f"【{'x' * (LONGEST + 1)}】 【1†L2】", ["1†L2"]),
    "over lines": ("【1†\nL2】", ["1†\nL2"]),
}


@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS)
def test_markers_have_their_place_in_the_text(text: str, words: list[str]) -> None:
    found = Markers().feed(text)
    assert [marker.words for marker in found] == words
    assert [text[marker.start : marker.end] for marker in found] == [
        f"【{word}】" for word in words
    ]


@pytest.mark.parametrize(("text", "_"), TEXTS.values(), ids=TEXTS)
def test_pieces_do_not_matter(text: str, _: object) -> None:
    assert in_pieces(text, list(text)) == Markers().feed(text)


def test_any_text_gives_the_same_in_any_pieces() -> None:
    chance = random.Random(7)
    for _round in range(2000):
        text = "".join(chance.choices("【】【】†Lx \n😀", k=chance.randrange(40)))
        whole = Markers().feed(text)
        pieces = []
        while (at := sum(map(len, pieces))) < len(text):
            pieces.append(text[at : at + chance.randrange(1, 6)])
        assert in_pieces(text, pieces) == whole


def in_pieces(text: str, pieces: list[str]) -> list[Marker]:
    assert "".join(pieces) == text
    markers = Markers()
    return [marker for piece in pieces for marker in markers.feed(piece)]


LINK = "sandbox:/mnt/data/"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"[it]({LINK}a.png) and more", ["a.png"]),
        (f"See {LINK}out/a%20b.csv.", ["out/a%20b.csv"]),
        (f"`{LINK}a` and {LINK}b", ["a", "b"]),
        (f"{LINK}", []),
        (f"{LINK}...", []),
        ("sandbox:/etc/passwd sandbox:/mnt/dat", []),
    ],
)
def test_links_to_files_are_found_in_whatever_pieces(text: str, found: list[str]) -> None:
    for pieces in ([text], list(text), [text[:9], text[9:30], text[30:]]):
        links = Links()
        markers = [marker for piece in pieces for marker in links.feed(piece)] + links.end()
        assert [marker.words for marker in markers] == [LINK + path for path in found]
        assert [text[marker.start : marker.end] for marker in markers] == [
            marker.words for marker in markers
        ]
