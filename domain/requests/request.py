"""The bodies of requests: their fields with types and limits
(docs/reference/api.md#create-a-response).

An omitted field that may be null is null, since the API treats both alike. Items and tools stay raw
here; decoding.py decodes them one by one, so that nothing a client sent is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, structs

from antiphon.domain.bounds import MAX_MEMBERS, Id, Int, Long, Many, Name, StopString, Text, TokenId
from antiphon.domain.history.tool_uses import ClearToolUses
from antiphon.domain.json import Json
from antiphon.domain.kinds import ITEM_KINDS
from antiphon.domain.vocabulary.text_formats import AnyFormat as AnyFormat
from antiphon.domain.vocabulary.text_formats import Effort as Effort
from antiphon.domain.vocabulary.text_formats import JsonObjectFormat as JsonObjectFormat
from antiphon.domain.vocabulary.text_formats import JsonSchemaFormat as JsonSchemaFormat
from antiphon.domain.vocabulary.text_formats import PlainFormat as PlainFormat
from antiphon.domain.vocabulary.text_formats import TextFormat as TextFormat

MAX_TOOLS = 1024
"""Of a request; a namespace and an MCP server are one tool each."""

Key = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[Key, MetadataValue], Meta(max_length=16)]
Bias = Annotated[float, Meta(ge=-1000, le=1000)]
Positive = Annotated[int, Meta(ge=1, le=2**31)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Verbosity = Literal["low", "medium", "high"]

_INCLUDABLE = (
    *(value for kind in ITEM_KINDS.values() for value in kind.include),
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "metrics",
    "reasoning.encrypted_content",
)
"""The values of `include`: those of the kinds' fields, and those that hide nothing."""

if TYPE_CHECKING:
    INCLUDABLE = str
else:
    INCLUDABLE = Literal[_INCLUDABLE]


class TextParams(Struct, frozen=True, kw_only=True):
    format: AnyFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningParams(Struct, frozen=True, kw_only=True):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Name | None = None


class StreamOptions(Struct, frozen=True, kw_only=True):
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class CompactionRule(Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """When to compact: at `compact_threshold` input tokens, or when the server decides."""

    compact_threshold: Annotated[int, Meta(ge=1000, le=2**31)] | None = None


class PromptCacheOptions(Struct, frozen=True, kw_only=True):
    """`prewarm` fills the prompt cache and generates nothing."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: Id | None = None


class StructuredOutputs(Struct, frozen=True, kw_only=True):
    """vLLM's constraint on the output; checks.py requires exactly one kind."""

    json: Json | Text | None = None
    regex: Text | None = None
    choice: Many[Text] | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    structural_tag: Text | Json | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: Text | None = None


class MultiAgentParams(Struct, frozen=True, kw_only=True):
    """Whether the model may have sub-agents, and how many may work at a time in the whole tree."""

    enabled: bool
    max_concurrent_subagents: Annotated[int, Meta(ge=1, le=2**31)] | None = None


class PromptParam(Struct, frozen=True, kw_only=True):
    """A prompt template and the values of its placeholders (prompt_templates.py)."""

    id: Id
    version: Name | None = None
    variables: Annotated[dict[Name, Raw], Meta(max_length=MAX_MEMBERS)] | None = None


class ModerationRule(Struct, frozen=True, kw_only=True):
    """`score`: the response shows the scores. `block`: what is flagged does not pass, either."""

    mode: Literal["score", "block"]


class ModerationPolicy(Struct, frozen=True, kw_only=True):
    input: ModerationRule | None = None
    output: ModerationRule | None = None


class ModerationParam(Struct, frozen=True, kw_only=True):
    """Asks for the moderation of this request's input and output."""

    model: Name
    policy: ModerationPolicy | None = None

    @property
    def blocks(self) -> frozenset[Literal["input", "output"]]:
        """The places where what is flagged does not pass."""
        policy = self.policy or ModerationPolicy()
        rules: dict[Literal["input", "output"], ModerationRule | None] = {
            "input": policy.input,
            "output": policy.output,
        }
        return frozenset(
            place for place, rule in rules.items() if rule is not None and rule.mode == "block"
        )


class RawPrompt(Struct, frozen=True, kw_only=True):
    """A text, or its tokens, from which the model goes on as it is, without a conversation.

    `echo`: the answer begins with it; `echo_only`: the answer is that alone, with the log
    probabilities that the model gives it.
    """

    text: Text | None = None
    tokens: Long[TokenId] | None = None
    echo: bool | None = None
    echo_only: bool | None = None


class ConversationParam(Struct, frozen=True, kw_only=True):
    id: Id


class NewConversation(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations`."""

    items: Annotated[tuple[Raw, ...], Meta(max_length=20)] | None = None
    metadata: Metadata | None = None


class NewMetadata(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations/{id}`."""

    metadata: Metadata | None


class NewItems(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=20)]


class NewContainer(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/containers`; the server decides which values it supports."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    expires_after: Json | None = None
    file_ids: Many[Id] | None = None
    memory_limit: Literal["1g", "4g", "16g", "64g"] | None = None
    network_policy: Json | None = None
    skills: Many[Json] | None = None


class NewContainerFile(Struct, frozen=True, kw_only=True):
    """The JSON body of `POST /v1/containers/{id}/files`."""

    file_id: Id


class SharedFields(Struct, frozen=True, kw_only=True):
    """The fields that mean the same in every API that this server speaks: some of OpenAI, and
    vLLM's extensions (docs/reference/api.md#sampling-and-engine-fields)."""

    model: Name | None = None
    store: bool | None = None
    stream: bool | None = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    metadata: Metadata | None = None
    service_tier: (
        Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None
    ) = None
    prompt_cache_key: Key | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: Name | None = None
    moderation: ModerationParam | None = None
    request_id: Id | None = None
    session_id: Id | None = None
    priority: Int | None = None
    cache_salt: (
        Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")] | None
    ) = None
    include_reasoning: bool | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1000)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Int | None = None
    stop: StopString | Annotated[tuple[StopString, ...], Meta(max_length=64)] | None = None
    stop_token_ids: Annotated[tuple[Int, ...], Meta(max_length=64)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Annotated[dict[Name, Bias], Meta(max_length=MAX_MEMBERS)] | None = None
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: Json | None = None
    mm_processor_kwargs: Json | None = None
    media_io_kwargs: Json | None = None
    kv_transfer_params: Json | None = None
    ec_transfer_params: Json | None = None
    vllm_xargs: Json | None = None
    watermarking: bool | None = None

    @property
    def comparison_response_id(self) -> str | None:
        """The response with whose prompt the client wants this one's compared."""
        options = self.prompt_cache_options
        return None if options is None else options.comparison_response_id

    def shared(self) -> dict[str, Any]:
        """Return the values of these fields alone, by their names; only Responses are compared."""
        values = {name: getattr(self, name) for name in SharedFields.__struct_fields__}
        if self.comparison_response_id is not None:
            options = structs.replace(values["prompt_cache_options"], comparison_response_id=None)
            values["prompt_cache_options"] = options
        return values

    def unshared(self) -> Iterator[str]:
        """Yield the paths of the values that `shared` leaves out."""
        if self.comparison_response_id is not None:
            yield "prompt_cache_options.comparison_response_id"


class CreateResponse(SharedFields, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`."""

    input: Annotated[str, Meta(max_length=10_485_760)] | Many[Raw] | None = None
    instructions: Text | None = None
    previous_response_id: Id | None = None
    conversation: Id | ConversationParam | None = None
    background: bool | None = None
    stream_options: StreamOptions | None = None
    include: Many[INCLUDABLE] | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None
    multi_agent: MultiAgentParams | None = None
    tools: Annotated[tuple[Raw, ...], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Name | Json | None = None
    top_logprobs: TopLogprobs | None = None
    text: TextParams | None = None
    reasoning: ReasoningParams | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: (
        Annotated[tuple[CompactionRule | ClearToolUses, ...], Meta(min_length=1, max_length=16)]
        | None
    ) = None
    prompt: PromptParam | None = None
    access_programs: Json | None = None
    image: Json | None = None
    generate: bool | None = None  # see docs/reference/api.md#warm-up
    enable_response_messages: bool | None = None
    previous_input_messages: Many[Json] | None = None
    raw_prompt: RawPrompt | None = None

    @property
    def has_agents(self) -> bool:
        """Whether the model may have sub-agents."""
        return self.multi_agent is not None and self.multi_agent.enabled

    @property
    def is_prewarm(self) -> bool:
        """Whether the request only fills the prompt cache and generates nothing
        (docs/reference/api.md#warm-up)."""
        options = self.prompt_cache_options
        return self.generate is False or (options is not None and options.prewarm is True)

    @property
    def compaction(self) -> CompactionRule | None:
        entries = self.context_management or ()
        return next((each for each in entries if isinstance(each, CompactionRule)), None)

    @property
    def tool_clearing(self) -> ClearToolUses | None:
        entries = self.context_management or ()
        return next((each for each in entries if isinstance(each, ClearToolUses)), None)

    @property
    def conversation_id(self) -> str | None:
        conversation = self.conversation
        return conversation.id if isinstance(conversation, ConversationParam) else conversation


FIELDS = frozenset(CreateResponse.__struct_fields__)

CHAT_COMPLETIONS_FIELDS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "functions": "tools",
    "function_call": "tool_choice",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of the Chat Completions API, which are refused, and the fields that replace them here."""

IGNORED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "access_programs": (),
    "image": (),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "moderation": (),
    "prompt_cache_options.mode": ("implicit",),
    "prompt_cache_options.ttl": ("30m",),
    "prompt_cache_retention": ("in_memory",),
    "reasoning.mode": ("standard",),
    "service_tier": ("auto", "default", "flex", "priority", "fast"),
    "session_id": (),
    "skip_special_tokens": (True,),
    "structured_outputs.disable_any_whitespace": (False,),
    "watermarking": (False,),
}
"""Fields that are accepted without effect, with the values that match what the server does anyway.

Responses list them in the `x-antiphon-ignored` header; some are also echoed.
"""
