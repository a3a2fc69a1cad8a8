"""Markers of citations in a text that arrives in fragments."""

from __future__ import annotations

import random

import pytest

from antiphon.domain.retrieval.citations import MAX_MARKER_CHARS, Links, Marker, Markers

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
    "as long as allowed": (f"【{'x' * MAX_MARKER_CHARS}】", ["x" * MAX_MARKER_CHARS]),
    "too long": (f"【{'x' * (MAX_MARKER_CHARS + 1)}】 【1†L2】", ["1†L2"]),
    "over several lines": ("【1†\nL2】", ["1†\nL2"]),
}


@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS)
def test_markers_have_their_offsets_in_the_text(text: str, words: list[str]) -> None:
    markers = Markers().feed(text)
    assert [marker.words for marker in markers] == words
    assert [text[marker.start : marker.end] for marker in markers] == [
        f"【{word}】" for word in words
    ]


@pytest.mark.parametrize(("text", "_"), TEXTS.values(), ids=TEXTS)
def test_single_characters_give_the_same_markers(text: str, _: object) -> None:
    assert markers_in_fragments(text, list(text)) == Markers().feed(text)


def test_any_text_gives_the_same_markers_in_any_fragments() -> None:
    rng = random.Random(7)
    for _round in range(2000):
        text = "".join(rng.choices("【】【】†Lx \n😀", k=rng.randrange(40)))
        expected = Markers().feed(text)
        fragments = []
        while (at := sum(map(len, fragments))) < len(text):
            fragments.append(text[at : at + rng.randrange(1, 6)])
        assert markers_in_fragments(text, fragments) == expected


def markers_in_fragments(text: str, fragments: list[str]) -> list[Marker]:
    assert "".join(fragments) == text
    markers = Markers()
    return [marker for fragment in fragments for marker in markers.feed(fragment)]


LINK = "sandbox:/mnt/data/"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (f"[it]({LINK}a.png) and more", ["a.png"]),
        (f"See {LINK}out/a%20b.csv.", ["out/a%20b.csv"]),
        (f"`{LINK}a` and {LINK}b", ["a", "b"]),
        (f"{LINK}", []),
        (f"{LINK}...", []),
        ("sandbox:/etc/passwd sandbox:/mnt/dat", []),
    ],
)
def test_links_to_files_are_found_in_any_fragments(text: str, paths: list[str]) -> None:
    for fragments in ([text], list(text), [text[:9], text[9:30], text[30:]]):
        links = Links()
        markers = [found for fragment in fragments for found in links.feed(fragment)] + links.end()
        assert [marker.words for marker in markers] == [LINK + path for path in paths]
        assert [text[marker.start : marker.end] for marker in markers] == [
            marker.words for marker in markers
        ]
