"""How the tokenizers of model families cut a text before they merge: `tokenizer.ggml.pre`.

The expressions are those of the families' own tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_OTHER = r"[^\r\n\p{L}\p{N}]?"

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"


def _words(digits: str) -> str:
    return rf"{_ENDINGS}|{_OTHER}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"


def _cased_words(digits: str, endings: str) -> str:
    return (
        rf"{_OTHER}{_UPPER}*{_LOWER}+{endings}|{_OTHER}{_UPPER}+{_LOWER}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
    )


LLAMA_3 = _words(r"\p{N}{1,3}")
QWEN_2 = _words(r"\p{N}")
QWEN_3_5 = (
    rf"{_ENDINGS}|{_OTHER}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
GPT_4O = _cased_words(r"\p{N}{1,3}", _ENDINGS + "?")
TEKKEN = _cased_words(r"\p{N}", "")
DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _BLANKS
)
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

CUTS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (GPT_2,),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (DIGIT, GPT_2)),
    **dict.fromkeys(("exaone", "minerva-7b"), (DIGIT, GPT_2)),
    **dict.fromkeys(("olmo", "mpt", "jais", "phi-2", "granite-docling", "trillion"), (GPT_2,)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe"), (LLAMA_3,)),
    **dict.fromkeys(("dbrx", "pixtral", "chatglm-bpe", "glm4", "lfm2", "hunyuan"), (LLAMA_3,)),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "grok-2"), (QWEN_2,)),
    "qwen35": (QWEN_3_5,),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), (GPT_4O,)),
    "tekken": (TEKKEN,),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), (r"\p{N}{1,3}", CJK, DEEPSEEK_3)),
}
"""By name, the expressions that cut a text, one after the other. A row that were wrong, or a name
that is new, does no harm: a model is only served if its server makes the same tokens."""

IGNORE_MERGES = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe", "lfm2", "dbrx"}
    | {"gpt-4o", "llama4", "kanana2", "tekken"}
)
"""Tokenizers that take a whole word that is a token, however it is merged."""


def make_pre_tokenizer(name: str) -> Any:
    """Return the pre-tokenizer of this name, None if it is not known."""
    from tokenizers import Regex, pre_tokenizers

    if name not in CUTS:
        return None
    cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in CUTS[name]]
    return pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
