"""Properties that hold for any tokens in any steps: no error, no lost text, the same deltas."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.adapters.formats.harmony import HarmonyParser
from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.encoding import load_encoding
from antiphon.adapters.formats.input_unwrapper import InputUnwrapper
from antiphon.adapters.formats.tools import wrap_text
from antiphon.application.ports import Step
from antiphon.domain import deltas as d
from antiphon.domain.content import Logprob

from .conftest import a_turn, feed, joined

ENCODING = load_encoding()

MARKUP = [h.START, h.CHANNEL, h.CONSTRAIN, h.MESSAGE, h.END, h.CALL, h.RETURN]
HEADERS = [
    "assistant", "analysis", "commentary", "final", " to=functions.get_weather", " json",
    " to=functions.note", " to=functions.nope", " to=browser.search", "user", " code",
    '{"input": "',
]  # fmt: skip
# Not part of any header: each has a character that no header has.
TEXTS = ["§zebra", " quo§kka!", "§\n\n", '§{"a": 1}', " 🫠§", "§to be"]

words = st.sampled_from([tuple(ENCODING.encode(word)) for word in HEADERS + TEXTS])
special = st.sampled_from([(token,) for token in MARKUP])
anything = st.integers(min_value=-1, max_value=h.VOCABULARY_SIZE + 5).map(lambda token: (token,))
turns = st.lists(st.one_of(words, special, special), max_size=30).map(
    lambda parts: [token for part in parts for token in part]
)
noise = st.lists(st.one_of(words, special, anything), max_size=30).map(
    lambda parts: [token for part in parts for token in part]
)


def new_parser() -> HarmonyParser:
    return HarmonyParser(ENCODING, a_turn())


def text_of(deltas: Sequence[d.Delta]) -> str:
    return "".join(getattr(delta, "text", "") for delta in deltas)


def in_pieces(parser: HarmonyParser, ids: Sequence[int], cuts: Sequence[int]) -> list[d.Delta]:
    deltas: list[d.Delta] = []
    start = 0
    for cut in [*sorted({min(cut, len(ids)) for cut in cuts}), len(ids)]:
        part = ids[start:cut]
        logprobs = tuple(Logprob(token=str(token), logprob=0.0) for token in part)
        deltas += parser.feed(Step(token_ids=part, logprobs=logprobs))
        start = cut
    return deltas + parser.end()


@given(noise, st.lists(st.integers(min_value=0, max_value=100)))
def test_the_same_tokens_give_the_same_items_in_any_steps(ids: list[int], cuts: list[int]) -> None:
    whole, cut = new_parser(), new_parser()
    assert joined(in_pieces(cut, ids, cuts)) == joined(in_pieces(whole, ids, []))
    assert cut.reasoning_tokens == whole.reasoning_tokens
    assert cut.repair_count == whole.repair_count


@given(turns)
def test_all_text_outside_headers_is_shown_in_order(ids: list[int]) -> None:
    shown = "".join(text_of(feed(new_parser(), ids)).split())
    position = 0
    for character in "".join(ENCODING.text([t for t in ids if t < h.FIRST_SPECIAL]).split()):
        if character in "§🫠":
            position = shown.index(character, position) + 1


@given(noise)
def test_no_delta_is_empty_and_none_shows_markup(ids: list[int]) -> None:
    for delta in feed(new_parser(), ids, size=7):
        text = getattr(delta, "text", "some")
        assert text
        assert "<|" not in text


@given(noise)
def test_deltas_of_one_step_are_already_joined(ids: list[int]) -> None:
    deltas = new_parser().feed(Step(token_ids=ids))
    assert deltas == joined(deltas)


@settings(max_examples=50)
@given(st.text(), st.lists(st.integers(min_value=0, max_value=100)), st.booleans())
def test_a_custom_tools_text_survives_its_wrapping(
    text: str, cuts: list[int], is_unwrapped: bool
) -> None:
    text = text.encode("utf-8", "replace").decode()
    unwrapper = InputUnwrapper("input")
    written = f"= {text}" if is_unwrapped else wrap_text(text)
    pieces, start = [], 0
    for cut in [*sorted(cuts), len(written)]:
        pieces.append(unwrapper.feed(written[start:cut]))
        start = max(start, cut)
    held, stray = unwrapper.end()
    assert "".join([*pieces, held]) == (written if is_unwrapped else text)
    assert stray == ""
