"""Make three models that vLLM loads on a small CPU: real tokenizers, random weights, no download.

python tests/vllm/tiny_models.py FOLDER makes
  FOLDER/chat     a Qwen3 with a byte-level BPE that is trained here, and a ChatML template
  FOLDER/sees     an Idefics3, which looks at images, with the same tokenizer and markers for images
  FOLDER/gpt_oss  a gpt_oss with the whole vocabulary of Harmony, which oss-harmony carries

They write nonsense, but all else about them is as in their big siblings: special tokens, template,
stop tokens, the layers' shapes. What a constraint forces out of them is therefore valid, and what
nothing constrains shows how the server treats nonsense.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from openai_harmony import HarmonyEncodingName, load_harmony_encoding
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 20
CHAT_LENGTH = 8192
GPT_OSS_LENGTH = 4096

CHAT_TEMPLATE = r"""
{%- set turns = messages %}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- endif %}
{%- if system or tools %}
    {{- '<|im_start|>system\n' + system }}
    {%- if tools %}
        {{- '\n# Tools\nThese functions may be called:\n<tools>\n' }}
        {%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}
        {{- '</tools>\nA call is written as\n<tool_call>\n' }}
        {{- '{"name": ..., "arguments": {...}}\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in turns %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content }}
        {{- '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {%- set arguments = function.arguments %}
            {{- '\n<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
            {{- arguments if arguments is string else arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

HARMONY_MARKERS = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}
HARMONY_WORDS = 199_998
HARMONY_SIZE = 201_088


def main(folder: Path) -> None:
    make_chat(folder / "chat")
    make_sees(folder / "sees")
    make_gpt_oss(folder / "gpt_oss")


# --- chat -----------------------------------------------------------------------------------------


def make_chat(folder: Path) -> None:
    folder.mkdir(parents=True)
    tokenizer = _train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    _write(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CHAT_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": tokenizer.get_vocab_size(),
    }
    _write(
        folder / "config.json",
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        max_position_embeddings=CHAT_LENGTH,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        tie_word_embeddings=True,
        hidden_act="silu",
        eos_token_id=end,
        torch_dtype="float32",
        **shape,
    )
    # top_k and temperature differ from vLLM's own defaults, so that a test sees whose were taken.
    _write(folder / "generation_config.json", eos_token_id=[end], temperature=0.7, top_k=20)
    weights = dict(_chat_weights(**shape))
    # Without a score of their own, parts of characters are never the likeliest token: what the
    # model writes at temperature 0 is then text that can be compared.
    weights["model.embed_tokens.weight"][_parts_of_characters(tokenizer)] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _corpus(),
        trainers.BpeTrainer(
            vocab_size=700,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            show_progress=False,
        ),
    )
    # As in Qwen3: one token each, yet not "special", so that decoding keeps them.
    tokenizer.add_tokens(
        [
            AddedToken(mark, special=False, normalized=False)
            for tag in ("think", "tool_call", "tool_response")
            for mark in (f"<{tag}>", f"</{tag}>")
        ]
    )
    return tokenizer


def _parts_of_characters(tokenizer: Tokenizer) -> list[int]:
    tokens = range(tokenizer.get_vocab_size())
    return [token for token in tokens if "\N{REPLACEMENT CHARACTER}" in tokenizer.decode([token])]


def _corpus() -> Iterator[str]:
    """Yield text that looks like what tests send, for merges that are more than single bytes."""
    yield CHAT_TEMPLATE
    yield __doc__ or ""
    for city in ("Paris", "London", "Berlin", "Tokyo"):
        for unit in ("celsius", "fahrenheit"):
            arguments = {"city": city, "unit": unit, "days": 3, "exact": True}
            yield json.dumps({"name": "get_weather", "arguments": arguments})
            yield f"What is the weather in {city}, in degrees {unit}? It is sunny and warm there."


def _chat_weights(
    *,
    hidden_size: int,
    intermediate_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    vocab_size: int,
) -> Iterator[tuple[str, torch.Tensor]]:
    random = _Random()
    yield "model.embed_tokens.weight", random(vocab_size, hidden_size)
    yield "model.norm.weight", torch.ones(hidden_size)
    for layer in range(num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for norm, size in {
            "input_layernorm": hidden_size,
            "post_attention_layernorm": hidden_size,
            "self_attn.q_norm": head_dim,
            "self_attn.k_norm": head_dim,
        }.items():
            yield f"{prefix}.{norm}.weight", torch.ones(size)
        for projection, rows, columns in (
            ("self_attn.q_proj", num_attention_heads * head_dim, hidden_size),
            ("self_attn.k_proj", num_key_value_heads * head_dim, hidden_size),
            ("self_attn.v_proj", num_key_value_heads * head_dim, hidden_size),
            ("self_attn.o_proj", hidden_size, num_attention_heads * head_dim),
            ("mlp.gate_proj", intermediate_size, hidden_size),
            ("mlp.up_proj", intermediate_size, hidden_size),
            ("mlp.down_proj", hidden_size, intermediate_size),
        ):
            yield f"{prefix}.{projection}.weight", random(rows, columns)


# --- sees -----------------------------------------------------------------------------------------

SEES_LENGTH = 2048
SEES_TEMPLATE = r"""
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {{- '<image>' if part.type == 'image' else part.text }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}"""
SEES_MARKERS = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}
SEES_EDGE = 56
"""Pixels of a tile's side. A larger image is cut into tiles, so its tokens depend on its size."""


def make_sees(folder: Path) -> None:
    # Imported here: it takes seconds, and the other models need none of it. This family is the one
    # whose processor works without torchvision.
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    folder.mkdir(parents=True)
    tokenizer = _train_tokenizer()
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer.add_special_tokens(
        [
            AddedToken(mark, special=True, normalized=False)
            for mark in (*SEES_MARKERS.values(), *tiles)
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    _write(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        processor_class="Idefics3Processor",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=SEES_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=SEES_TEMPLATE,
        **SEES_MARKERS,
    )
    layers = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = Idefics3Config(
        image_token_id=tokenizer.token_to_id("<image>"),
        pad_token_id=0,
        scale_factor=2,
        vision_config={
            **layers,
            "num_attention_heads": 2,
            "image_size": SEES_EDGE,
            "patch_size": 14,
        },
        text_config={
            **layers,
            "model_type": "llama",
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": SEES_LENGTH,
            "eos_token_id": end,
            "bos_token_id": None,
            "pad_token_id": 0,
        },
    )
    torch.manual_seed(SEED)
    Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    _write(folder / "generation_config.json", eos_token_id=[end])
    _write(folder / "processor_config.json", processor_class="Idefics3Processor", image_seq_len=4)
    _write(
        folder / "preprocessor_config.json",
        image_processor_type="Idefics3ImageProcessor",
        processor_class="Idefics3Processor",
        do_convert_rgb=True,
        do_resize=True,
        size={"longest_edge": 4 * SEES_EDGE},
        do_image_splitting=True,
        max_image_size={"longest_edge": SEES_EDGE},
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        do_pad=True,
        resample=1,
    )


# --- gpt_oss --------------------------------------------------------------------------------------


def make_gpt_oss(folder: Path) -> None:
    folder.mkdir(parents=True)
    _harmony_tokenizer().save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token="<|startoftext|>",
        eos_token="<|return|>",
        pad_token="<|endoftext|>",
        model_max_length=GPT_OSS_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    shape = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "num_local_experts": 2,
    }
    layers = ["sliding_attention", "full_attention"]
    _write(
        folder / "config.json",
        architectures=["GptOssForCausalLM"],
        model_type="gpt_oss",
        vocab_size=HARMONY_SIZE,
        num_hidden_layers=len(layers),
        layer_types=layers,
        sliding_window=128,
        num_experts_per_tok=1,
        max_position_embeddings=GPT_OSS_LENGTH,
        initial_context_length=GPT_OSS_LENGTH,
        rms_norm_eps=1e-5,
        rope_theta=150_000,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 128,
            "truncate": False,
        },
        attention_bias=True,
        hidden_act="silu",
        swiglu_limit=7.0,
        tie_word_embeddings=False,
        eos_token_id=200_002,
        pad_token_id=199_999,
        torch_dtype="float32",
        **shape,
    )
    _write(folder / "generation_config.json", eos_token_id=[200_002, 199_999, 200_012])
    weights = dict(_gpt_oss_weights(layers=len(layers), **shape))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _harmony_tokenizer() -> Tokenizer:
    """Return the vocabulary without its merges: words that are a token are found whole.

    Prompts come from Harmony's own encoder, so all that is asked of this tokenizer is the text of
    a token and the token of a word like "assistant"; finding the 200,000 merges would take minutes.
    """
    # Only the encoder's core gives a token's bytes; its public side joins and decodes them.
    core = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)._inner
    letters = _byte_letters()
    words = {
        "".join(letters[byte] for byte in core.decode_bytes([token])): token
        for token in range(HARMONY_WORDS)
    }
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(
                HARMONY_MARKERS.get(token, f"<|reserved_{token}|>"), special=True, normalized=False
            )
            for token in range(HARMONY_WORDS, HARMONY_SIZE)
        ]
    )
    assert tokenizer.token_to_id("<|call|>") == 200_012
    return tokenizer


def _byte_letters() -> list[str]:
    """Return the letter that a byte-level vocabulary writes for each byte."""
    strange = iter(range(256, 512))
    return [
        chr(byte) if chr(byte).isprintable() and byte not in (0x20, 0xAD) else chr(next(strange))
        for byte in range(256)
    ]


def _gpt_oss_weights(
    *,
    layers: int,
    hidden_size: int,
    intermediate_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    num_local_experts: int,
) -> Iterator[tuple[str, torch.Tensor]]:
    random = _Random()
    queries, keys = num_attention_heads * head_dim, num_key_value_heads * head_dim
    yield "model.embed_tokens.weight", random(HARMONY_SIZE, hidden_size)
    yield "lm_head.weight", random(HARMONY_SIZE, hidden_size)
    yield "model.norm.weight", torch.ones(hidden_size)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", torch.ones(hidden_size)
        yield f"{prefix}.post_attention_layernorm.weight", torch.ones(hidden_size)
        for name, shape in {
            "self_attn.sinks": (num_attention_heads,),
            "self_attn.q_proj.weight": (queries, hidden_size),
            "self_attn.q_proj.bias": (queries,),
            "self_attn.k_proj.weight": (keys, hidden_size),
            "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.weight": (keys, hidden_size),
            "self_attn.v_proj.bias": (keys,),
            "self_attn.o_proj.weight": (hidden_size, queries),
            "self_attn.o_proj.bias": (hidden_size,),
            "mlp.router.weight": (num_local_experts, hidden_size),
            "mlp.router.bias": (num_local_experts,),
            "mlp.experts.gate_up_proj": (num_local_experts, hidden_size, 2 * intermediate_size),
            "mlp.experts.gate_up_proj_bias": (num_local_experts, 2 * intermediate_size),
            "mlp.experts.down_proj": (num_local_experts, intermediate_size, hidden_size),
            "mlp.experts.down_proj_bias": (num_local_experts, hidden_size),
        }.items():
            yield f"{prefix}.{name}", random(*shape)


# --- both -----------------------------------------------------------------------------------------


class _Random:
    """Draws weights, the same ones every time."""

    def __init__(self) -> None:
        self._source = torch.Generator().manual_seed(SEED)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._source) * 0.1


def _write(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(fields, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
