"""A prompt in portions has the tokens of the whole one, whatever splits texts before the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.test_portions import TEXTS

from antiphon.adapters.formats.chat_template.marker_cutter import CUT, Batch, PartEncoder
from antiphon.adapters.formats.chat_template.tokenizer import FolderTokenizer
from antiphon.adapters.formats.portions import word_ends

tokenizers = pytest.importorskip("tokenizers", reason="the extra chat is not installed")
models, normalizers = tokenizers.models, tokenizers.normalizers
pre_tokenizers, trainers = tokenizers.pre_tokenizers, tokenizers.trainers
decoders = tokenizers.decoders

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKERS = ["<|im_end|>", "<|start|>", "</think>"]


def _byte_level(pattern: str | None) -> Any:
    made = tokenizers.Tokenizer(models.BPE())
    if pattern is None:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    made.decoder = decoders.ByteLevel()
    return made


def _sentence_pieces(model: Any) -> Any:
    """Like Llama 2: no pattern, a mark in the place of each space, and one before the text."""
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def _marked_words() -> Any:
    made = tokenizers.Tokenizer(models.BPE(unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    return made


def _words() -> Any:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="?"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made


MADE: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: _byte_level(None),
    "llama3": lambda: _byte_level(LLAMA),
    "llama2": lambda: _sentence_pieces(models.BPE(unk_token="?", fuse_unk=True)),
    "unigram": lambda: _sentence_pieces(models.Unigram()),
    "metaspace": _marked_words,
    "bert": _words,
}


def _texts() -> Iterator[str]:
    root = Path(__file__).parents[3]
    yield from (file.read_text(encoding="utf-8") for file in sorted(root.glob("*.md")))
    yield "it's 1234567 don't \u00e9t\u00e9 \u4f60\u597d\u3002 " * 50


def _encoder(name: str) -> PartEncoder:
    return PartEncoder(FolderTokenizer(_trained(name)))


def _with_start(name: str) -> Any:
    made = tokenizers.Tokenizer.from_str(_trained(name).to_str())
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="? $A", special_tokens=[("?", made.token_to_id("?"))]
    )
    return made


@cache
def _trained(name: str) -> Any:
    made = MADE[name]()
    options: dict[str, Any] = {"vocab_size": 800, "show_progress": False}
    if name == "unigram":
        trainer = trainers.UnigramTrainer(**options, special_tokens=["?"], unk_token="?")
    elif name == "bert":
        trainer = trainers.WordPieceTrainer(**options, special_tokens=["?"])
    else:
        trainer = trainers.BpeTrainer(
            **options,
            special_tokens=["?"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if made.normalizer is None else [],
        )
    made.train_from_iterator(_texts(), trainer)
    made.add_special_tokens(MARKERS)
    return made


@pytest.mark.parametrize("name", MADE)
@given(text=TEXTS)
def test_cuts_that_are_safe_change_no_tokens(name: str, text: str) -> None:
    encoder = _encoder(name)
    whole = encoder.encode_batch(Batch([text], starts_text=True))
    for place in word_ends(text, 0, len(text) - 1):
        if encoder._is_safe(text, place):
            parts = Batch([text[:place], text[place:]], starts_text=True)
            assert encoder.encode_batch(parts) == whole


@pytest.mark.parametrize("name", sorted(set(MADE) - {"bert"}))
def test_a_text_that_people_write_has_safe_places(name: str) -> None:
    encoder = _encoder(name)
    text = next(_texts())
    places = list(word_ends(text, 0, len(text) - 1))
    safe = sum(encoder._is_safe(text, place) for place in places[:200])
    assert safe > 40


@pytest.mark.parametrize("name", MADE)
@given(text=st.lists(TEXTS, max_size=3))
def test_many_texts_have_the_tokens_that_each_has(name: str, text: list[str]) -> None:
    tokenizer = _encoder(name)._tokenizer
    assert tokenizer.encode_all(text) == [tokenizer.encode(each, special=True) for each in text]


def test_a_long_text_is_encoded_in_portions_with_the_tokens_of_the_whole() -> None:
    encoder = _encoder("llama3")
    text = "".join(f"line {n};\n//  comment\n\n   indented {n}\n" for n in range(10_000))
    batches = list(encoder.batches(text))
    assert len(batches) > 2
    assert encoder.encode(text) == encoder._encode(text)


@pytest.mark.parametrize("name", MADE)
@given(ids=st.lists(st.integers(0, 9), max_size=4))
def test_a_prompt_begins_once_with_the_tokens_that_begin_all(name: str, ids: list[int]) -> None:
    tokenizer = FolderTokenizer(_trained(name))
    assert list(tokenizer.start_ids) == []
    tokenizer = FolderTokenizer(_with_start(name))
    [start] = tokenizer.start_ids
    assert tokenizer.begin_text(ids) == (ids if ids[:1] == [start] else [start, *ids])


def test_parts_between_cuts_are_encoded_many_at_a_time() -> None:
    encoder = _encoder("llama3")
    text = CUT.join(["<", "|im_end|> "] * 2000)
    assert len(list(encoder.batches(text))) < 10
    assert encoder.encode(text) == [
        token for part in text.split(CUT) for token in encoder._encode(part)
    ]
