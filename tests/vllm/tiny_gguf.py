"""Make a model that llama.cpp loads on a small CPU: a real tokenizer, random weights, no download.

python tests/vllm/tiny_gguf.py TOKENIZER_FOLDER FILE.gguf

It writes nonsense, but its tokenizer and its chat template are those of the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np

SEED = 20
LAYERS = 2
WIDTH = 64
HEADS = 4
KV_HEADS = 2
INNER_WIDTH = 128
CONTEXT_LENGTH = 8192
END_SCALE = 4
"""With this, the end of the turn is the likeliest token after about every second one: the model's
answers are short."""


def main(tokenizer_folder: Path, file: Path) -> None:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER_WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    tokens, end = _add_tokenizer(writer, tokenizer_folder)
    _add_weights(writer, tokens, end)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> tuple[int, int]:
    """Add a byte-level BPE tokenizer, and return the number of tokens and the id of the end."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    ids = {**tokenizer["model"]["vocab"], **special}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens
    ]
    merges = [
        each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ids[config["eos_token"]])
    writer.add_bos_token_id(ids[config["eos_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(config["chat_template"])
    return len(tokens), ids[config["eos_token"]]


def _add_weights(writer: gguf.GGUFWriter, tokens: int, end: int) -> None:
    random = np.random.default_rng(SEED)
    kv_width = WIDTH // HEADS * KV_HEADS

    def add(name: str, *shape: int) -> None:
        scale = 1.0 if len(shape) == 1 else 0.1
        values = np.ones(shape) if len(shape) == 1 else random.normal(0, scale, shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", tokens, WIDTH)
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm", WIDTH)
        add(f"blk.{layer}.attn_q", WIDTH, WIDTH)
        add(f"blk.{layer}.attn_k", kv_width, WIDTH)
        add(f"blk.{layer}.attn_v", kv_width, WIDTH)
        add(f"blk.{layer}.attn_output", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_norm", WIDTH)
        add(f"blk.{layer}.ffn_gate", INNER_WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_up", INNER_WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER_WIDTH)
    add("output_norm", WIDTH)
    output = random.normal(0, 0.1, (tokens, WIDTH))
    output[end] *= END_SCALE
    writer.add_tensor("output.weight", output.astype(np.float32))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
