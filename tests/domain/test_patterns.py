"""Clients' patterns match as Python's do, and no text takes them long."""

from __future__ import annotations

import re
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.domain.errors import InvalidGrammar
from antiphon.domain.grammars.matching import MAX_PATTERN_CHARS, has_match, parse_pattern

MAX_STEPS = 100_000


class OutOfSteps(Exception):
    """More work than a request may cause."""


class Account:
    def __init__(self) -> None:
        self.spent = 0

    def spend(self, steps: int) -> None:
        self.spent += steps
        if self.spent > MAX_STEPS:
            raise OutOfSteps


def matches(pattern: str, text: str) -> bool | None:
    """Return whether it matches, None if it is not regular."""
    account = Account()
    node = parse_pattern(pattern, account.spend)
    return None if node is None else has_match(node, text, account.spend)


ATOMS = st.sampled_from(["a", "b", "ab", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", "(?i:B)", ""])


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["?", "*", "+", "{2}", "{1,2}", "{0,3}", "{2,}", "*?"])
    return st.one_of(
        st.builds("({}){}".format, inner, repeats),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
    )


OPTIONS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "^"]),
    st.recursive(ATOMS, grown, max_leaves=6),
    st.sampled_from(["", r"\Z"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(OPTIONS, min_size=1, max_size=3).map("|".join), st.text("abB1 \n", max_size=7))
def test_a_pattern_matches_as_in_python(pattern: str, text: str) -> None:
    assert matches(pattern, text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?!a)", r"(a)\1", r"\bword\b", r"\p{L}", "(^a)", "a" * (MAX_PATTERN_CHARS + 1)],
)
def test_what_is_not_regular_or_too_long_is_not_matched(pattern: str) -> None:
    assert matches(pattern, "a") is None


def test_an_invalid_pattern_is_refused() -> None:
    with pytest.raises(InvalidGrammar):
        matches("(", "a")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 2000 + "!"),
        ("^(a|a)*$", "a" * 2000 + "!"),
        ("^(a|aa)+$", "a" * 2000 + "!"),
        ("(.*)*x", "y" * 2000),
        ("a*a*a*a*a*b", "a" * 2000),
        ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 2000),
        ("^((((((((a*)*)*)*)*)*)*)*)*$", "a" * 2000 + "!"),
        (r"^\s+|\s+$", "x" + " " * 2000 + "x"),
    ],
)
def test_the_steps_grow_with_the_text(pattern: str, text: str) -> None:
    node = parse_pattern(pattern, int)
    assert node is not None
    short, long = Account(), Account()
    has_match(node, text[:1000], short.spend)
    has_match(node, text, long.spend)
    assert long.spent < 2.5 * short.spent


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{0,99}){0,99}b?){0,99}" * 9,
        "(a{0,999}){0,999}" * 99,
        "(((((((a?){9}){9}){9}){9}){9}){9}){9}",
        "|".join("a" * 99 + str(number) for number in range(90)),
        "(?i)" + r"[^\w\s]" * 99,
        "[ab]" * 2500,
        "a|" * 5000,
    ],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    # Other threads of the process, and what else the machine does, take none of the time.
    tries_s: list[float] = []
    for _ in range(3):
        started = time.thread_time()
        with suppress(OutOfSteps):
            matches(pattern, "a" * 3000)
        tries_s.append(time.thread_time() - started)
    assert min(tries_s) < 0.5
