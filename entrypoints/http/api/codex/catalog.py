"""The catalog of models that Codex asks for: `GET /v1/models?client_version=…`.

Its fields are those of `ModelInfo` in `codex-rs/protocol/src/openai_models.rs` of
https://github.com/openai/codex. Codex rejects the whole catalog if one of them is missing or wrong
in one model, and says so only in its log (docs/decisions/0090).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from antiphon.application.model.describe_models import Capabilities, ModelDescription

INSTRUCTIONS = Path(__file__).with_name("instructions.md").read_text(encoding="utf-8")
"""What Codex tells the model first. It has none of its own for a model of a catalog."""

EFFORTS: Mapping[str, str] = {
    "none": "No reasoning",
    "minimal": "Hardly any reasoning",
    "low": "Short reasoning",
    "medium": "Some reasoning",
    "high": "Long reasoning",
    "xhigh": "Very long reasoning",
    "max": "As much reasoning as the model can do",
}
"""What Codex's menu says beside each effort."""

DEFAULT_EFFORT = "medium"
"""What Codex requests if its user chooses nothing. Without a default, it shows `none` as one."""


class CodexEffort(Struct, frozen=True, kw_only=True):
    effort: str
    description: str


class CodexTruncation(Struct, frozen=True, kw_only=True):
    """How much of a command's output Codex shows to the model."""

    mode: Literal["bytes"]
    limit: int


class CodexModel(Struct, frozen=True, kw_only=True):
    """A model under one of its names, as Codex wants to know it."""

    slug: str
    display_name: str
    description: str
    visibility: Literal["list", "hide"]
    priority: int
    supported_in_api: bool
    base_instructions: str
    context_window: int
    input_modalities: Sequence[Literal["text", "image"]]
    supported_reasoning_levels: Sequence[CodexEffort]
    default_reasoning_level: str | None
    supports_reasoning_summaries: bool
    support_verbosity: bool
    supports_parallel_tool_calls: bool
    shell_type: Literal["default"]
    apply_patch_tool_type: Literal["freeform"]
    truncation_policy: CodexTruncation
    experimental_supported_tools: Sequence[str]


class CodexCatalog(Struct, frozen=True, kw_only=True):
    """The catalog that Codex requests with `client_version`, without models that are not there."""

    models: Sequence[CodexModel]


def codex_catalog(descriptions: Sequence[ModelDescription]) -> CodexCatalog:
    return CodexCatalog(models=[model for each in descriptions for model in _codex_models(each)])


def _codex_models(description: ModelDescription) -> Iterator[CodexModel]:
    """Yield the model under each of its names; the menu has only the first."""
    capabilities = description.capabilities
    if capabilities is None:
        # Without a context window, Codex would fill the context until a request fails.
        return
    for position, name in enumerate(description.names):
        yield _codex_model(name, capabilities, is_listed=position == 0)


def _codex_model(name: str, capabilities: Capabilities, *, is_listed: bool) -> CodexModel:
    return CodexModel(
        slug=name,
        display_name=name,
        description=f"Served here, with a context of {capabilities.context_length:,} tokens",
        visibility="list" if is_listed else "hide",
        priority=0,  # before OpenAI's own, which this server does not have; the order decides
        supported_in_api=True,
        base_instructions=INSTRUCTIONS,
        context_window=capabilities.context_length,
        input_modalities=capabilities.input_modalities,
        supported_reasoning_levels=[
            CodexEffort(effort=effort, description=EFFORTS.get(effort, effort))
            for effort in capabilities.efforts
        ],
        default_reasoning_level=DEFAULT_EFFORT if DEFAULT_EFFORT in capabilities.efforts else None,
        supports_reasoning_summaries=True,
        support_verbosity=True,
        supports_parallel_tool_calls=True,
        shell_type="default",
        apply_patch_tool_type="freeform",
        truncation_policy=CodexTruncation(mode="bytes", limit=10_000),
        experimental_supported_tools=(),
    )
