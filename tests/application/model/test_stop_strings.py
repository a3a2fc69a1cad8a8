"""Stop strings in deltas: however the text is split, it ends at the same place."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from antiphon.application.model.stop_strings import StopPrefixes, StopStrings
from antiphon.domain import deltas as d


def feed_each(deltas: list[d.Delta], *stops: str, include: bool = False) -> list[d.Delta]:
    strings = StopStrings(stops, include=include)
    return [each for delta in deltas for each in strings.feed([delta])] + strings.end()


def text(deltas: list[d.Delta]) -> str:
    return "".join(getattr(delta, "text", "") for delta in deltas)


def test_the_text_ends_before_the_stop_string() -> None:
    assert text(feed_each([d.TextDelta("one two three")], "two")) == "one "
    assert text(feed_each([d.TextDelta("one two three")], "two", include=True)) == "one two"


def test_an_incomplete_stop_string_is_passed_on() -> None:
    assert text(feed_each([d.TextDelta("one tw"), d.TextDelta("elve")], "two")) == "one twelve"


def test_delayed_text_comes_before_the_next_delta() -> None:
    end = d.ItemEnd()
    deltas = feed_each([d.TextDelta("hm t"), end, d.TextDelta("wo")], "two")
    assert deltas == [d.TextDelta("hm "), d.TextDelta("t"), end, d.TextDelta("wo")]


def test_only_the_text_of_messages_can_stop_a_turn() -> None:
    deltas = [d.ReasoningDelta("two"), d.CallStart("two"), d.ArgumentsDelta('{"two": 2}')]
    assert feed_each(deltas, "two") == deltas


def test_nothing_follows_the_stop_string() -> None:
    deltas = feed_each([d.TextDelta("a two"), d.CallStart("f"), d.TextDelta("b")], "two")
    assert deltas == [d.TextDelta("a ")]


@given(
    st.text(alphabet="abc", max_size=20),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(0, 20), max_size=6),
)
def test_any_split_gives_the_same_text(whole: str, stops: list[str], cuts: list[int]) -> None:
    positions = [0, *sorted(cut for cut in cuts if cut <= len(whole)), len(whole)]
    parts = [whole[a:b] for a, b in pairwise(positions)]
    matches = [whole.find(stop) for stop in stops if stop in whole]
    result = text(feed_each([d.TextDelta(part) for part in parts if part], *stops))
    if not matches:
        assert result == whole
    elif len({len(stop) for stop in stops}) == 1:
        assert result == whole[: min(matches)]
    else:
        assert not any(stop in result for stop in stops)


@given(
    st.lists(st.text("ab", min_size=1, max_size=6), max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_the_beginning_of_a_stop_string_is_found_however_the_text_is_split(
    stops: list[str], pieces: list[str]
) -> None:
    prefixes, read = StopPrefixes(stops), ""
    for piece in pieces:
        read += piece
        if any(stop in read for stop in stops):
            break
        begins = (
            length
            for length in range(len(read), 0, -1)
            if any(stop.startswith(read[-length:]) for stop in stops)
        )
        assert prefixes.feed(piece) == next(begins, 0)


def test_a_long_stop_string_is_compared_with_each_character_once() -> None:
    prefixes = StopPrefixes(["a" * 20_000 + "b"])
    assert prefixes.feed("a" * 200_000) == 20_000  # the square would take minutes
