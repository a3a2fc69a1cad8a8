"""A GGUF file's tokenizer and template become a model folder."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from antiphon.adapters.engines.llama.model_folder import write_model_folder
from antiphon.domain.errors import SettingsError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
HEADER: Mapping[str, Any] = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*ALPHABET, "he", "<|end|>"],
    "tokenizer.ggml.token_type": [1] * (len(ALPHABET) + 1) + [3],
    "tokenizer.ggml.merges": ["h e"],
    "tokenizer.ggml.eos_token_id": len(ALPHABET) + 1,
    "tokenizer.chat_template": "{{ messages }}",
}


def write_gguf(file: Path, header: Mapping[str, Any]) -> Path:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value_of(value: Any) -> bytes:
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        if isinstance(value, int):
            return struct.pack("<II", 4, value)
        if isinstance(value[0], str):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)

    pairs = b"".join(text(key) + value_of(value) for key, value in header.items())
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(header)) + pairs)
    return file


def test_the_folder_has_the_tokenizer_the_template_and_the_ends(tmp_path: Path) -> None:
    write_model_folder(write_gguf(tmp_path / "model.gguf", HEADER), tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    end = len(ALPHABET) + 1
    assert tokenizer.encode("he<|end|>").ids == [len(ALPHABET), end]
    assert tokenizer.decode([len(ALPHABET), end], skip_special_tokens=False) == "he<|end|>"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config == {"eos_token": "<|end|>", "chat_template": "{{ messages }}"}
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [end]}


@pytest.mark.parametrize(
    "changes", [{"tokenizer.ggml.pre": "of a new family"}, {"tokenizer.ggml.model": "rwkv"}]
)
def test_an_unknown_tokenizer_is_refused_with_what_to_do(
    tmp_path: Path, changes: Mapping[str, str]
) -> None:
    file = write_gguf(tmp_path / "model.gguf", {**HEADER, **changes})
    with pytest.raises(SettingsError, match="Set `tokenizer` to a folder"):
        write_model_folder(file, tmp_path)


@pytest.mark.parametrize("length", [0, 3, 20, 200])
def test_a_broken_file_is_refused(tmp_path: Path, length: int) -> None:
    file = write_gguf(tmp_path / "model.gguf", HEADER)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(SettingsError, match="it is not a whole GGUF file"):
        write_model_folder(file, tmp_path)
