"""Tokens are decoded to their exact bytes, in both ways that vocabularies write bytes."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.adapters.engines.token_decoder import TokenDecoder

pytestmark = [
    pytest.mark.vllm,  # for transformers, which comes with vLLM
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("default"),
]

VOCABULARY = ["<unk>", "<s>", "\u2581the", "the", "\u2581", "<0xF0>", "<0x0A>", "\u20ac", "#"]


@pytest.fixture(scope="module")
def sentencepiece() -> Any:
    """A tokenizer like Llama 2's: a marker for the space, and byte tokens as a fallback."""
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
def test_a_piece_is_decoded_as_in_the_middle_of_a_text(
    sentencepiece: Any, piece: str, expected: tuple[str, bytes]
) -> None:
    text, token_bytes = TokenDecoder(sentencepiece).decode_token(VOCABULARY.index(piece))
    assert (text, bytes(token_bytes)) == expected


def test_a_row_without_a_token_decodes_to_nothing(sentencepiece: Any) -> None:
    assert TokenDecoder(sentencepiece).decode_token(len(VOCABULARY) + 50) == ("", ())
