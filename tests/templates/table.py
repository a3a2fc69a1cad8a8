"""The right answers: the family of each template, and where prompts may differ."""

from __future__ import annotations

from collections.abc import Mapping

TEMPLATES_OF: Mapping[str, tuple[str, ...]] = {
    "apertus": ("templates/Apertus-8B-Instruct", "examples/tool_chat_template_apertus"),
    "apriel": ("templates/Apriel-1.6-15b-Thinker-fixed", "templates/unsloth-Apriel-1.5"),
    "cohere": (
        "templates/Cohere2MoE",
        "templates/CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    ),
    "command_r": ("templates/CohereForAI-c4ai-command-r-plus-tool_use",),
    "deepseek_r1": (
        "templates/deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "templates/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "templates/llama-cpp-deepseek-r1",
        "examples/tool_chat_template_deepseekr1",
    ),
    "deepseek_v3": ("examples/tool_chat_template_deepseekv3",),
    "deepseek_v31": (
        "templates/deepseek-ai-DeepSeek-V3.1",
        "examples/tool_chat_template_deepseekv31",
    ),
    "deepseek_v32": ("templates/deepseek-ai-DeepSeek-V3.2",),
    "deepseek_v4": (
        "templates/deepseek-ai-DeepSeek-V4",
        "templates/deepseek-ai-DeepSeek-V4-Flash-0731",
    ),
    "firefunction": ("templates/fireworks-ai-llama-3-firefunction-v2",),
    "functionary": ("templates/meetkai-functionary-medium-v3.1",),
    "functiongemma": ("examples/tool_chat_template_functiongemma",),
    "gemma4": (
        "templates/google-gemma-4-31B-it",
        "templates/google-gemma-4-31B-it-interleaved",
        "examples/tool_chat_template_gemma4",
        "vllm_examples/tool_chat_template_gemma4",
    ),
    "gigachat3": ("templates/GigaChat3-10B-A1.8B",),
    "gigachat31": ("templates/GigaChat3.1-10B-A1.8B",),
    "glm": ("templates/GLM-4.6", "examples/tool_chat_template_glm4"),
    "glm47": ("templates/GLM-4.7-Flash",),
    "granite": (
        "templates/ibm-granite-granite-3.3-2B-Instruct",
        "examples/tool_chat_template_granite",
        "vllm_examples/tool_chat_template_granite",
    ),
    "granite4": ("templates/ibm-granite-granite-4.0", "templates/ibm-granite-granite-4.1"),
    "granite_20b_fc": ("examples/tool_chat_template_granite_20b_fc",),
    "harmony": ("templates/openai-gpt-oss-120b",),
    "hermes": (
        "templates/Bielik-11B-v3.0-Instruct",
        "templates/MiMo-VL",
        "templates/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "templates/Qwen-QwQ-32B",
        "templates/Qwen-Qwen2.5-7B-Instruct",
        "templates/Qwen-Qwen3-0.6B",
        "examples/tool_chat_template_hermes",
        "templates/qwen3",
        "chat_templates/template_minicpmv45",
    ),
    "hunyuan_a13b": ("examples/tool_chat_template_hunyuan_a13b",),
    "hy3": ("templates/tencent-Hy3",),
    "internlm2": ("examples/tool_chat_template_internlm2_tool",),
    "kimi_k2": (
        "templates/Kimi-K2-Instruct",
        "templates/Kimi-K2-Thinking",
        "templates/moonshotai-Kimi-K2",
    ),
    "kimi_k3": ("templates/Kimi-K3",),
    "laguna": ("templates/poolside-Laguna-XS.2", "templates/poolside-Laguna-XS-2.1"),
    "laguna_s": ("templates/poolside-Laguna-S-2.1",),
    "lfm2": (
        "templates/LFM2-8B-A1B",
        "templates/LFM2.5-8B-A1B",
        "templates/LFM2.5-Instruct",
    ),
    "ling3": ("templates/inclusionai-ling-3.0-flash",),
    "llama3_json": (
        "templates/meta-llama-Llama-3.1-8B-Instruct",
        "templates/meta-llama-Llama-3.2-3B-Instruct",
        "examples/tool_chat_template_llama3.1_json",
        "examples/tool_chat_template_llama3.2_json",
    ),
    "llama4_json": ("examples/tool_chat_template_llama4_json",),
    "minicpm5": ("templates/openbmb-MiniCPM5-1B",),
    "minimax_m1": ("templates/MiniMax-M1",),
    "minimax_m2": ("templates/MiniMax-M2",),
    "minimax_m3": ("templates/MiniMax-M3",),
    "mistral": (
        "templates/Mistral-Small-3.2-24B-Instruct-2506",
        "templates/mistralai-Ministral-3-14B-Reasoning-2512",
        "templates/unsloth-mistral-Devstral-Small-2507",
    ),
    "mistral_array": (
        "templates/mistralai-Mistral-Nemo-Instruct-2407",
        "examples/tool_chat_template_mistral",
        "examples/tool_chat_template_mistral3",
        "examples/tool_chat_template_mistral_parallel",
    ),
    "muse_glimmer": ("templates/muse-glimmer", "examples/tool_chat_template_muse_glimmer"),
    "nemotron": ("templates/NVIDIA-Nemotron-Nano-v2",),
    "phi4_mini": ("examples/tool_chat_template_phi4_mini",),
    "pythonic": (
        "examples/tool_chat_template_gemma3_pythonic",
        "examples/tool_chat_template_llama3.2_pythonic",
        "examples/tool_chat_template_llama4_pythonic",
        "examples/tool_chat_template_toolace",
    ),
    "qwen3_coder": (
        "templates/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "templates/Qwen3-Coder",
        "templates/Qwen3.5-4B",
        "templates/StepFun3.5-Flash",
        "examples/tool_chat_template_qwen3coder",
        "templates/qwen35",
    ),
    "reka": ("templates/Reka-Edge",),
    "seed_oss": ("templates/ByteDance-Seed-OSS",),
    "solar": ("templates/upstage-Solar-Open-100B",),
    "spark": ("templates/Spark2.5",),
    "xlam": (
        "examples/tool_chat_template_xlam_llama",
        "examples/tool_chat_template_xlam_qwen",
    ),
}
"""Family → templates whose calls it reads."""

WITHOUT_CALLS: Mapping[str, tuple[str, ...]] = {
    "think": (
        "templates/HuggingFaceTB-SmolLM3-3B",  # has tools only under names of its own
        "templates/llama-cpp-rwkv-world",
        "templates/step5_vl",
    ),
    "plain": (
        "templates/google-gemma-2-2b-it",
        "templates/microsoft-Phi-3.5-mini-instruct",
        # It writes calls after a name in the header of a message, which no family reads.
        "templates/meetkai-functionary-medium-v3.2",
        "examples/template_alpaca",
        "examples/template_chatglm",
        "examples/template_chatglm2",
        "examples/template_chatml",
        "examples/template_falcon",
        "examples/template_falcon_180b",
        "examples/template_inkbot",
        "examples/template_teleflm",
        "chat_templates/template_basic",
        "chat_templates/template_blip2",
        "chat_templates/template_chatml",
        "chat_templates/template_deepseek_ocr",
        "chat_templates/template_deepseek_vl2",
        "chat_templates/template_kimi_audio",
    ),
}
"""Family → templates of models that cannot call tools, or not in a way that is known."""

UNUSABLE: Mapping[str, str] = {
    # It changes a generator, which transformers does not allow either.
    "templates/llama-cpp-deepseek-r1": "Object of type generator is not JSON serializable",
    # Its tools are in a variable of its own.
    "templates/fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",
}
"""Template → why it cannot render a conversation with tools, as the check says it."""

NEEDS_NULL = "Only a null content makes it write calls, and transformers leaves out what is null."
ID_SAYS_NAME = (
    "The ids say the names of the calls, as the model was trained: functions.NAME:NUMBER."
)
WITH_CALLS = (
    "a call and its result",
    "two calls at a time, and an answer",
    "reasoning before a call",
)

OLD_MISTRAL = (
    "templates/mistralai-Mistral-Nemo-Instruct-2407",
    "examples/tool_chat_template_mistral",
    "examples/tool_chat_template_mistral_parallel",
)
"""They drop instructions after a tool's result."""

DIFFERENCES: Mapping[tuple[str, str], str] = {
    (template, conversation): why
    for template, why in (
        ("templates/deepseek-ai-DeepSeek-R1-Distill-Llama-8B", NEEDS_NULL),
        ("templates/moonshotai-Kimi-K2", ID_SAYS_NAME),
    )
    for conversation in WITH_CALLS
} | {
    (template, "instructions and several turns"): "It writes them to the last user, if anywhere."
    for template in OLD_MISTRAL
}
"""Template and conversation → why the prompt is not the one of transformers."""

FITTED_FOR_OTHERS = frozenset(
    (template, conversation)
    for template in OLD_MISTRAL
    for conversation in ("instructions and several turns", "tools that may be called")
)
"""Template and conversation that it takes as they are, fitted as others lose texts."""
