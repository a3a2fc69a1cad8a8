"""The options of `engine = "chat"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from antiphon.adapters.upstreams.options import SERVER_URL, UpstreamOptions
from antiphon.domain.requests.request import Effort

Think = Literal["field", "tags", "open"]


class ChatOptions(UpstreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for using a model on a Chat Completions server."""

    url: Annotated[
        str,
        Meta(
            pattern=SERVER_URL,
            description="The URL of the server's API, usually with `/v1` at its end.",
        ),
    ]
    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="What the server calls the model; the first name if unset."),
    ] = None
    context_length: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(description="Tokens of prompt and output together; the server may tell it."),
    ] = None
    efforts: Annotated[
        tuple[str, ...],
        Meta(
            description="The values of `reasoning.effort` that the model knows; by default all. "
            "What the server refuses is left out.",
            extra={"shown_default": "all"},
        ),
    ] = get_args(Effort)
    reads_images: Annotated[
        bool | None,
        Meta(description="Whether the model reads images; if unset, what the server says, or yes."),
    ] = None
    think: Annotated[
        Think,
        Meta(
            description="Where the reasoning is: in a `field` of its own, between `<think>` `tags` "
            "in the text, or in text that only ends with `</think>` (`open`)."
        ),
    ] = "field"
    ignores: Annotated[
        tuple[str, ...],
        Meta(
            description="Fields of Chat Completions that the server is known to do nothing with, "
            "for example `seed`."
        ),
    ] = ()
    count: Annotated[
        Literal["auto", "estimate"],
        Meta(
            description="How tokens are counted before a turn: by the server if it can (`auto`), "
            "or by an `estimate` without asking it."
        ),
    ] = "auto"
    extra_body: Annotated[
        Mapping[str, Any],
        Meta(description="More fields for the body of each request to the server."),
    ] = {}
