"""Tokens are spelled by their exact bytes, in both ways that vocabularies write bytes."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.adapters.engines.vllm_engine.token_decoder import TokenDecoder

pytestmark = [
    pytest.mark.vllm,  # for transformers, which comes with it
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("default"),
]

VOCABULARY = ["<unk>", "<s>", "\u2581the", "the", "\u2581", "<0xF0>", "<0x0A>", "\u20ac", "#"]


@pytest.fixture(scope="module")
def sentencepiece() -> Any:
    """A tokenizer like Llama 2's: a mark for the space, and byte tokens for what has no other."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("\u2581the", (" the", b" the")),
        ("the", ("the", b"the")),
        ("\u2581", (" ", b" ")),
        ("<0xF0>", ("\N{REPLACEMENT CHARACTER}", b"\xf0")),
        ("<0x0A>", ("\n", b"\n")),
        ("\u20ac", ("\u20ac", b"\xe2\x82\xac")),
        ("<s>", ("<s>", b"<s>")),
    ],
)
def test_a_piece_is_spelled_as_it_stands_within_a_text(
    sentencepiece: Any, piece: str, expected: tuple[str, bytes]
) -> None:
    text, exact = TokenDecoder(sentencepiece).decode_token(VOCABULARY.index(piece))
    assert (text, bytes(exact)) == expected


def test_a_row_without_a_token_spells_nothing(sentencepiece: Any) -> None:
    assert TokenDecoder(sentencepiece).decode_token(len(VOCABULARY) + 50) == ("", ())
