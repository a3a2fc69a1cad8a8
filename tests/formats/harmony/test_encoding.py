"""The vocabulary is the library's, and it is only loaded when it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.encoding import Encoding, load_encoding

NAMES = {
    h.START_OF_TEXT: "<|startoftext|>",
    h.END_OF_TEXT: "<|endoftext|>",
    h.RETURN: "<|return|>",
    h.CONSTRAIN: "<|constrain|>",
    h.CHANNEL: "<|channel|>",
    h.START: "<|start|>",
    h.END: "<|end|>",
    h.MESSAGE: "<|message|>",
    h.CALL: "<|call|>",
    h.PLACEHOLDER: "<|reserved_200013|>",
}


@pytest.mark.parametrize(("token", "name"), NAMES.items(), ids=NAMES.values())
def test_special_tokens_have_the_numbers_of_the_library(
    encoding: Encoding, token: int, name: str
) -> None:
    assert encoding.encode_markup(name) == [token]


def test_all_stop_tokens_of_the_library_are_known(encoding: Encoding) -> None:
    assert set(encoding._library.stop_tokens_for_assistant_actions()) <= set(h.STOPS)


@given(st.text())
def test_every_text_decodes_to_itself(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    ids = load_encoding().encode(text)
    assert load_encoding().text(ids) == text
    assert all(token < h.FIRST_SPECIAL for token in ids)


SPELLED = st.sampled_from([*NAMES.values(), "<|unknown|>", "<|", "|>", "<|start", "a word, "])


@given(st.lists(SPELLED | st.text(max_size=3)).map("".join))
def test_markup_that_is_split_has_the_tokens_of_the_whole(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    encoding = load_encoding()
    ids: list[int] = []
    for piece in encoding.split_markup(text):
        ids += encoding.encode(piece) if isinstance(piece, str) else [piece]
    assert ids == encoding.encode_markup(text)


@given(st.lists(st.integers()))
def test_any_numbers_can_be_decoded(ids: list[int]) -> None:
    assert isinstance(load_encoding().decode_bytes(ids), bytes)


def test_half_a_character_can_be_encoded(encoding: Encoding) -> None:
    assert encoding.text(encoding.encode("a\ud83d")) == "a\ufffd"


def test_the_format_does_not_load_its_vocabulary() -> None:
    """In a separate process, since this one has already loaded it."""
    program = (
        "import sys\n"
        "from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup\n"
        "from antiphon.application.ports import Prompt, Turn\n"
        "format = HarmonyFormat(); HarmonyMarkup()\n"
        "format.constraint(Turn(model='m', items=()), Prompt(token_ids=()))\n"
        "sys.exit('openai_harmony' in sys.modules)\n"
    )
    folder = Path(__file__).parent
    assert subprocess.run([sys.executable, "-c", program], cwd=folder, check=False).returncode == 0
