"""How model servers write the same Chat Completions answer: a row of STYLES for each.

What is odd in a row was seen in a real server; the address says where. A row has the oddities of
all the versions that people run, so it may be odder than the newest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Json = dict[str, Any]
Repeats = Literal["absent", "null", "empty", "same", "new"]


class CallStyle(Struct, frozen=True, kw_only=True):
    """How the pieces of a streamed call are written.

    `index` is the number of the call; `zero` gives each call the number 0. `later_ids` and
    `later_names` are what all pieces but the first have for them. With `arguments` in pieces, the
    first piece has none of them, unless `opens_with_arguments`.
    """

    index: Literal["counted", "zero", "absent", "from_one"] = "counted"
    id_form: str = "call_{hex:24}"
    later_ids: Repeats = "absent"
    later_names: Repeats = "absent"
    arguments: Literal["pieces", "whole", "object"] = "pieces"
    opens_with_arguments: bool = False
    is_list: bool = True
    finish: str = "tool_calls"
    finishes_in_same_chunk: bool = False


class Style(Struct, frozen=True, kw_only=True):
    """How a server writes its answers, and what it refuses.

    `reasoning`: the field, or the kind of text, that has it. `usage`: in a chunk of its own
    (`last`), beside the finish reason (`finish`), in each chunk (`each`); `always` has it even if
    nobody asked. `refused_fields`: fields of a body that it answers with `refused_status`; if it
    has `known_fields`, it refuses all others, too.
    `owner` is `owned_by` in its list of models, `sizes` where it says its context length.
    """

    owner: str = "system"

    reasoning: Literal["reasoning_content", "reasoning", "both", "think_tags", "parts"] = (
        "reasoning_content"
    )
    calls: CallStyle = CallStyle()
    has_role: Literal["first", "each", "never"] = "first"
    first_content: str | None = ""
    fills_nulls: bool = False
    step_tokens: int = 1
    usage: Literal["last", "finish", "each", "never"] = "last"
    usage_always: bool = False
    cached: Literal["details", "deepseek", "plain", "absent"] = "details"
    finish_reasons: Mapping[str, str] = {}
    has_refusals: bool = False
    has_logprobs: bool = True
    opening: bytes = b""
    comment: bytes = b""
    line_end: bytes = b"\n"
    separates_events: bool = True
    has_space: bool = True
    has_done: bool = True
    prompt_filter: bool = False
    more_in_chunk: Json = {}
    more_in_choice: Json = {}
    error_event: Literal["data", "event", "field", "chunk"] = "data"
    error_body: Literal["openai", "flat", "mistral", "text"] = "openai"
    context_message: str = "maximum context length"
    context_code: str | None = None
    context_type: str = "BadRequestError"
    refused_fields: frozenset[str] = frozenset()
    known_fields: frozenset[str] = frozenset()
    refused_in_messages: frozenset[str] = frozenset()
    refused_status: int = 400
    checks_calls: bool = False
    call_id_chars: int | None = None
    sizes: Literal["vllm", "llama_cpp", "ollama", "lm_studio", "openrouter", "mistral"] | None = (
        None
    )
    tokenizes: Literal["vllm", "llama_cpp"] | None = None


VLLM_CONTEXT = (
    "This model's maximum context length is {limit} tokens. However, you requested {tokens} tokens "
    "in the messages, Please reduce the length of the messages."
)

STYLES: Mapping[str, Style] = {
    # Pieces of arguments without id, name and type; the number of tokens in a chunk of its own.
    # https://community.openai.com/t/streaming-with-tools-missing-tool-id-name/997791
    "openai": Style(
        reasoning="reasoning_content",
        first_content="",
        has_refusals=True,
        more_in_chunk={"service_tier": "default", "system_fingerprint": "fp_44709d6fcb"},
        more_in_choice={"logprobs": None},
        context_message=(
            "This model's maximum context length is {limit} tokens. However, your messages "
            "resulted in {tokens} tokens. Please reduce the length of the messages."
        ),
        context_code="context_length_exceeded",
        context_type="invalid_request_error",
        checks_calls=True,
        refused_fields=frozenset(
            {"top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "cache_salt"}
        ),
        refused_in_messages=frozenset({"reasoning_content", "reasoning"}),
    ),
    # A first chunk without choices, with what the filter said of the prompt:
    # https://github.com/pydantic/pydantic-ai/issues/164
    "azure": Style(
        prompt_filter=True,
        has_refusals=True,
        more_in_choice={"content_filter_results": {"hate": {"filtered": False}}},
        context_message=(
            "This model's maximum context length is {limit} tokens. However, your messages "
            "resulted in {tokens} tokens. Please reduce the length of the messages."
        ),
        context_code="context_length_exceeded",
        context_type="invalid_request_error",
        checks_calls=True,
    ),
    # Both names of reasoning were used; an empty id in later pieces, and each call the number 0:
    # https://github.com/InternLM/lmdeploy/issues/3412. `stop_reason` beside the finish reason:
    # https://github.com/vllm-project/vllm/pull/19662
    "vllm": Style(
        owner="vllm",
        reasoning="both",
        calls=CallStyle(id_form="chatcmpl-tool-{hex:32}", later_ids="empty"),
        more_in_choice={"stop_reason": None},
        context_message=VLLM_CONTEXT,
        sizes="vllm",
        tokenizes="vllm",
    ),
    # Fields that say nothing are null, among them id and name of later pieces:
    # https://github.com/sgl-project/sglang/pull/35542 and /issues/4700
    "sglang": Style(
        owner="sglang",
        calls=CallStyle(later_ids="null", later_names="null"),
        fills_nulls=True,
        step_tokens=3,
        more_in_choice={"logprobs": None, "matched_stop": None},
        error_body="flat",
        context_message=(
            "The input ({tokens} tokens) is longer than the model's context length "
            "({limit} tokens)."
        ),
        sizes="vllm",
    ),
    # The first chunk has a null content, the last has timings, and older builds send errors in a
    # field `error:` instead of `data:`: https://github.com/coddy-project/coddy-agent/pull/106
    # The wording of a long prompt: https://github.com/ggml-org/llama.cpp/pull/15780
    "llama_cpp": Style(
        owner="llamacpp",
        calls=CallStyle(id_form="{hex:32}", opens_with_arguments=True),
        first_content=None,
        more_in_chunk={"system_fingerprint": "b9554-d403f00ec", "timings": {"predicted_n": 1}},
        usage_always=True,
        error_event="field",
        context_message=(
            "the request exceeds the available context size. try increasing the context size or "
            "enable context shift"
        ),
        context_type="exceed_context_size_error",
        sizes="llama_cpp",
        tokenizes="llama_cpp",
    ),
    # Whole calls, all of them with the number 0: https://github.com/ollama/ollama/issues/15457
    # The role in each chunk, and "stop" after calls: https://github.com/BerriAI/litellm/pull/37792
    "ollama": Style(
        owner="library",
        reasoning="reasoning",
        calls=CallStyle(
            index="zero",
            id_form="call_{hex:8}",
            arguments="whole",
            finish="stop",
            finishes_in_same_chunk=False,
        ),
        has_role="each",
        cached="absent",
        more_in_chunk={"system_fingerprint": "fp_ollama"},
        context_message="prompt too long; exceeded max context length by {over} tokens",
        context_type="api_error",
        sizes="ollama",
    ),
    # Calls that are an object instead of a list, with arguments that are an object instead of a
    # text: https://github.com/huggingface/text-generation-inference/pull/2949. No [DONE].
    "tgi": Style(
        reasoning="think_tags",
        calls=CallStyle(
            arguments="object", is_list=False, index="zero", id_form="", finish="eos_token"
        ),
        has_role="each",
        cached="absent",
        finish_reasons={"stop": "eos_token"},
        has_space=False,
        has_done=False,
        error_body="text",
        refused_fields=frozenset({"parallel_tool_calls"}),
        refused_status=422,
        context_message=(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {limit}. "
            "Given: {tokens} `inputs` tokens and 1 `max_new_tokens`"
        ),
        context_type="validation",
    ),
    # Ids of digits, sometimes empty: https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/830
    # The wording of a long prompt: issues/546 there. Errors are events of their own.
    "lm_studio": Style(
        owner="organization_owner",
        reasoning="reasoning",
        calls=CallStyle(id_form="{digits:9}", later_ids="absent", later_names="absent"),
        has_role="each",
        step_tokens=2,
        error_event="event",
        cached="absent",
        context_message=(
            "Trying to keep the first {tokens} tokens when context the overflows. However, the "
            "model is loaded with context length of only {limit} tokens, which is not enough. Try "
            "to load the model with a larger context length, or provide a shorter input"
        ),
        sizes="lm_studio",
    ),
    # Content is a list of parts when it reasons: https://github.com/symfony/ai/issues/2422
    # Whole calls in the chunk of the finish reason, ids of nine letters
    # (https://github.com/anomalyco/opencode/issues/1680), unknown fields are refused
    # (https://github.com/dnakov/anon-kode/issues/53, https://github.com/charmbracelet/crush/issues/1590)
    "mistral": Style(
        owner="mistralai",
        reasoning="parts",
        calls=CallStyle(
            id_form="{hex:9}", arguments="whole", finishes_in_same_chunk=True, later_ids="same"
        ),
        usage="finish",
        usage_always=True,
        cached="absent",
        has_logprobs=False,
        more_in_chunk={"p": "abcdefgh"},
        error_body="mistral",
        context_message=(
            "Prompt contains {tokens} tokens and 0 draft tokens, too large for model with {limit} "
            "maximum context length"
        ),
        context_type="invalid_request_error",
        refused_fields=frozenset(
            {
                "stream_options",
                "max_completion_tokens",
                "seed",
                "logprobs",
                "top_logprobs",
                "logit_bias",
                "top_k",
                "min_p",
                "repetition_penalty",
                "cache_salt",
                "chat_template_kwargs",
                "user",
                "metadata",
                "service_tier",
            }
        ),
        known_fields=frozenset(
            [
                "model",
                "messages",
                "stream",
                "temperature",
                "top_p",
                "max_tokens",
                "stop",
                "random_seed",
                "response_format",
                "tools",
                "tool_choice",
                "parallel_tool_calls",
                "presence_penalty",
                "frequency_penalty",
                "n",
                "prediction",
                "prompt_mode",
                "reasoning_effort",
                "safe_prompt",
            ]
        ),
        refused_in_messages=frozenset({"reasoning_content", "reasoning"}),
        refused_status=422,
        checks_calls=True,
        call_id_chars=9,
        sizes="mistral",
    ),
    # Comments while it waits, and its own names for cached tokens; null content while it reasons:
    # https://api-docs.deepseek.com/quick_start/rate_limit
    "deepseek": Style(
        owner="deepseek",
        opening=b": keep-alive\n\n: keep-alive\n\n",
        fills_nulls=False,
        first_content=None,
        cached="deepseek",
        usage="finish",
        usage_always=True,
        more_in_choice={"logprobs": None},
        context_message=(
            "This model's maximum context length is {limit} tokens. However, you requested "
            "{tokens} tokens ({tokens} in the messages, 0 in the completion). Please "
            "reduce the length of the messages or completion."
        ),
        context_code="invalid_request_error",
        context_type="invalid_request_error",
        checks_calls=True,
    ),
    # Comments, a role in each chunk, and an error as a chunk with the finish reason "error":
    # https://openrouter.ai/docs/api-reference/streaming
    "openrouter": Style(
        reasoning="reasoning",
        calls=CallStyle(later_ids="absent", later_names="null"),
        opening=b": OPENROUTER PROCESSING\n\n",
        comment=b": OPENROUTER PROCESSING\n\n",
        has_role="each",
        usage_always=True,
        error_event="chunk",
        more_in_chunk={"provider": "Azure"},
        more_in_choice={"native_finish_reason": None},
        context_message=(
            "This endpoint's maximum context length is {limit} tokens. However, you requested "
            "about {tokens} tokens ({tokens} of text input). Please reduce the length of either "
            "one, or use the context-compression plugin to compress your prompt automatically."
        ),
        sizes="openrouter",
    ),
    # No index, and "stop" after calls: https://github.com/open-webui/computer/issues/224
    "gemini": Style(
        owner="google",
        calls=CallStyle(
            index="absent", id_form="function-call-{digits:19}", arguments="whole", finish="stop"
        ),
        has_role="each",
        usage="each",
        usage_always=True,
        cached="absent",
        context_message=(
            "The input token count ({tokens}) exceeds the maximum number of tokens allowed "
            "({limit})."
        ),
        context_type="INVALID_ARGUMENT",
        refused_fields=frozenset({"seed", "logit_bias"}),
    ),
    # An id of its own for each piece, and no number:
    # https://github.com/cubist38/mlx-openai-server/pull/216
    "mlx": Style(
        calls=CallStyle(index="zero", later_ids="new"),
        cached="absent",
        usage="never",
        context_message="Prompt is too long: {tokens} tokens exceed the context of {limit} tokens.",
    ),
    # What gateways between a server and its users make of a stream: other line ends, no blank line
    # between events, numbers from one, an id sent anew in each piece, and names too:
    # https://github.com/BerriAI/litellm/pull/37792, https://github.com/QuantumNous/new-api/pull/2701
    "gateway": Style(
        reasoning="reasoning",
        calls=CallStyle(index="from_one", later_ids="same", later_names="same"),
        has_role="never",
        line_end=b"\r\n",
        separates_events=False,
        comment=b": ping\r\n",
        cached="plain",
        usage="never",
        has_done=False,
    ),
}
