"""Write the tokenizer and the template of a GGUF file as a model folder.

All that reads a model folder then reads a GGUF file, too: the format, its family, the text of
tokens. Nothing here needs the weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.adapters.engines.llama.gguf import read_header
from antiphon.adapters.engines.llama.pre_tokenizers import (
    CUTS,
    IGNORE_MERGES,
    make_pre_tokenizer,
)
from antiphon.adapters.extras import install_command
from antiphon.domain.errors import SettingsError

CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that texts are searched for; only the first ones are special."""

TEMPLATE = "tokenizer.chat_template"
MODEL_TYPES = {"gpt-oss": "gpt_oss"}
"""Architectures that the `model_type` of a config.json spells differently; the others are alike
enough for what reads it."""

NAME_A_TOKENIZER = "Set `tokenizer` to a folder with the model's tokenizer.json."

Header = Mapping[str, Any]


def write_model_folder(file: Path, folder: Path) -> None:
    """Write what the file says into an existing folder.

    Raises: SettingsError if it cannot be read, or has a tokenizer that is not known here.
    """
    header = read_header(file)
    tokens: Sequence[str] = header.get("tokenizer.ggml.tokens") or ()
    if not tokens:
        raise SettingsError(f"The model file {str(file)!r} has no tokenizer. {NAME_A_TOKENIZER}")
    names = {
        f"{name}_token": tokens[number]
        for name, number in _special_ids(header)
        if number < len(tokens)
    }
    architecture = str(header.get("general.architecture", ""))
    ends = [number for name, number in _special_ids(header) if name in ("eos", "eot", "eom")]
    _write_json(folder / "tokenizer_config.json", {**names, **_templates(header)})
    _write_json(folder / "config.json", {"model_type": MODEL_TYPES.get(architecture, architecture)})
    _write_json(folder / "generation_config.json", {"eos_token_id": ends})
    _make_tokenizer(header, file).save(str(folder / "tokenizer.json"))


def _special_ids(header: Header) -> Iterator[tuple[str, int]]:
    """Yield the kind and the id of each special token that the file names."""
    kinds = {"unknown": "unk", "padding": "pad", "seperator": "sep"}
    for kind in ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask"):
        number = header.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(number, int):
            yield kinds.get(kind, kind), number


def _templates(header: Header) -> dict[str, Any]:
    """Return the chat template; if there are several, the list of the named ones."""
    default = header.get(TEMPLATE)
    named = {
        key.removeprefix(f"{TEMPLATE}."): value
        for key, value in header.items()
        if key.startswith(f"{TEMPLATE}.") and isinstance(value, str)
    }
    if default is None and not named:
        return {}
    if not named:
        return {"chat_template": default}
    sources = ({} if default is None else {"default": default}) | named
    return {"chat_template": [{"name": key, "template": each} for key, each in sources.items()]}


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _make_tokenizer(header: Header, file: Path) -> Any:
    """Return the file's tokenizer, of the library `tokenizers`. Raises: SettingsError."""
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models
    except ImportError:
        raise SettingsError(
            f"Reading a model file needs a package. Install it with: {install_command('chat')}"
        ) from None
    kind, cut = header.get("tokenizer.ggml.model"), str(header.get("tokenizer.ggml.pre", ""))
    if kind != "gpt2" or cut not in CUTS:
        what = f"{kind!r} with {cut!r}" if kind == "gpt2" else repr(kind)
        raise SettingsError(
            f"The model file {str(file)!r} has a kind of tokenizer that is not known here: {what}. "
            f"{NAME_A_TOKENIZER}"
        )
    tokens: Sequence[str] = header["tokenizer.ggml.tokens"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [_pair(each) for each in header.get("tokenizer.ggml.merges") or ()]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, ignore_merges=cut in IGNORE_MERGES, fuse_unk=False)
    )
    tokenizer.pre_tokenizer = make_pre_tokenizer(cut)
    tokenizer.decoder = decoders.ByteLevel()
    kinds: Sequence[int] = header.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    # A blank may be the first character of the second part only in a file of another kind.
    left, _, right = merge.partition(" ")
    return left, right
