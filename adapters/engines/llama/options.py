"""Options of llama.cpp, in a process of this server's or on servers that run already."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import fields

from antiphon.adapters.engines.pooled.options import SOURCES, PoolOptions

SAMPLED = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "max_tokens"),
)


class LlamaOptions(PoolOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `engine = "llama"`."""

    model: Annotated[
        str | None,
        Meta(
            description="A GGUF file. Without the URL of a server, a process of this server's runs "
            "it. With one, it is read for its tokenizer and its chat template; by default, that is "
            "the file that the server names, if it is on this machine."
        ),
    ] = None
    context_length: Annotated[
        Annotated[int, Meta(ge=64)] | None,
        Meta(
            description="The tokens of a run's context, in a process of this server's.",
            extra={"shown_default": "the model's own, at most 8192"},
        ),
    ] = None
    slots: Annotated[
        int,
        Meta(ge=1, le=256, description="How many runs go on at a time there. Others wait."),
    ] = 2
    threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="How many threads compute there.",
            extra={"shown_default": "one fewer than there are processors"},
        ),
    ] = None
    gpu_layers: Annotated[
        int | None,
        Meta(
            description="How many layers of the model are on a GPU there, if llama.cpp has one.",
            extra={"shown_default": "all"},
        ),
    ] = None
    cache_mb: Annotated[
        int,
        Meta(ge=0, description="Megabytes there for the prompts of conversations that wait."),
    ] = 512
    repeatable: Annotated[
        bool,
        Meta(
            description="Whether a request at temperature 0 always gets the same text there, "
            "however much of it is cached, and also if another server goes on with it. Tokens are "
            "computed one by one, so that a prompt takes about twice as long."
        ),
    ] = False
    sampling: Annotated[
        dict[str, float],
        Meta(
            description="Sampling parameters for requests that do not set them, by their names "
            "there, such as `temperature`. By default, what the server says.",
            extra={"allowed": ", ".join(SAMPLED)},
        ),
    ] = {}  # noqa: RUF012 - msgspec copies it
    shares_cache: Annotated[
        bool,
        Meta(
            description="Whether all tenants may share what the servers have cached of prompts, "
            "which llama.cpp cannot keep apart. If not, nothing is cached once there are several."
        ),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None or self.names_servers:
            self.check_sources()
        for name in self.sampling:
            if name not in SAMPLED:
                raise ValueError(f"`sampling` knows no {name!r}")
        if self.names_servers:
            given = [name for name in OF_A_PROCESS if getattr(self, name) != _DEFAULTS[name]]
            if given:
                raise ValueError(f"`{given[0]}` is for a model without the URL of a server")

    @property
    def names_servers(self) -> bool:
        return any(getattr(self, source) for source in SOURCES)


OF_A_PROCESS = ("context_length", "slots", "threads", "gpu_layers", "cache_mb", "repeatable")
_DEFAULTS = {each.name: each.default for each in fields(LlamaOptions)}
