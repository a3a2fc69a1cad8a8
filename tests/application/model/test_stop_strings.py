"""Stop strings in deltas: wherever the deltas are cut, the text ends at the same place."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from antiphon.application.model.stop_strings import StopStrings
from antiphon.domain import deltas as d


def passed(deltas: list[d.Delta], *stops: str, include: bool = False) -> list[d.Delta]:
    strings = StopStrings(stops, include=include)
    return [each for delta in deltas for each in strings.feed([delta])] + strings.end()


def text(deltas: list[d.Delta]) -> str:
    return "".join(getattr(delta, "text", "") for delta in deltas)


def test_the_text_ends_before_the_stop_string() -> None:
    assert text(passed([d.TextDelta("one two three")], "two")) == "one "
    assert text(passed([d.TextDelta("one two three")], "two", include=True)) == "one two"


def test_a_start_that_comes_to_nothing_is_passed_on() -> None:
    assert text(passed([d.TextDelta("one tw"), d.TextDelta("elve")], "two")) == "one twelve"


def test_what_is_held_comes_before_what_follows_it() -> None:
    end = d.ItemEnd()
    deltas = passed([d.ReasoningDelta("hm t"), d.TextDelta("wo"), end], "two")
    assert deltas == [d.ReasoningDelta("hm "), d.ReasoningDelta("t"), d.TextDelta("wo"), end]


def test_nothing_follows_the_stop_string() -> None:
    deltas = passed([d.TextDelta("a two"), d.CallStart("f"), d.TextDelta("b")], "two")
    assert deltas == [d.TextDelta("a ")]


@given(
    st.text(alphabet="abc", max_size=20),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(0, 20), max_size=6),
)
def test_any_cuts_give_the_same_text(whole: str, stops: list[str], cuts: list[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut <= len(whole)), len(whole)]
    parts = [whole[a:b] for a, b in pairwise(places)]
    found = [whole.find(stop) for stop in stops if stop in whole]
    given_ = text(passed([d.TextDelta(part) for part in parts if part], *stops))
    if not found:
        assert given_ == whole
    elif len({len(stop) for stop in stops}) == 1:
        assert given_ == whole[: min(found)]
    else:
        assert not any(stop in given_ for stop in stops)
