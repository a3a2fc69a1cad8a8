"""Options of a pool of vLLM servers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from antiphon.adapters.engines.pooled.options import PoolOptions


class VllmHttpOptions(PoolOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `engine = "vllm_http"`."""

    model: Annotated[
        str | None,
        Meta(
            description="A folder with the model's tokenizer and chat template, or the model's "
            "name on a hub. By default, what the servers name."
        ),
    ] = None
    model_name: Annotated[
        str | None,
        Meta(description="The servers' name of the model or LoRA adapter, if not their first."),
    ] = None
    priority: Annotated[
        bool,
        Meta(description="Whether the servers were started with --scheduling-policy priority."),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sources()
