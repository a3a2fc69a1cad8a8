"""The entries of `/v1/models`: OpenAI's keys, and what clients and operators need besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.application.model.describe_models import Capabilities, ModelDescription


class ModelEntry(Struct, frozen=True, kw_only=True):
    """A model under one of its names. What is unknown while the model is not there is absent.

    `root` is the first of its names, `aliases` are its names but `id`. `context_length` and
    `max_model_len` are the same: clients look for either. `hosted_tools` are the types of tools
    that this server runs for the model. `type` is there if it makes vectors, and answers nothing.
    """

    id: str
    object: Literal["model"]
    type: Literal["embedding"] | UnsetType = UNSET
    created: int
    owned_by: Literal["antiphon"]
    root: str
    aliases: Sequence[str]
    ready: bool
    hosted_tools: Sequence[str]
    context_length: int | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    input_modalities: Sequence[Literal["text", "image"]] | UnsetType = UNSET
    reasoning_efforts: Sequence[str] | UnsetType = UNSET
    format: str | UnsetType = UNSET


def model_entry(name: str, description: ModelDescription, *, created: int) -> ModelEntry:
    """Return the entry of a model under one of its names."""
    capabilities: Capabilities | None = description.capabilities
    return ModelEntry(
        id=name,
        object="model",
        created=created,
        owned_by="antiphon",
        root=description.names[0],
        aliases=[each for each in description.names if each != name],
        ready=description.is_ready,
        hosted_tools=description.hosted_tools,
        context_length=capabilities.context_length if capabilities else UNSET,
        max_model_len=capabilities.context_length if capabilities else UNSET,
        input_modalities=capabilities.input_modalities if capabilities else UNSET,
        reasoning_efforts=capabilities.efforts if capabilities else UNSET,
        format=capabilities.format_name if capabilities else UNSET,
    )


def embedding_entry(name: str, *, created: int) -> ModelEntry:
    """Return the entry of the model of `/v1/embeddings`."""
    return ModelEntry(
        id=name,
        object="model",
        type="embedding",
        created=created,
        owned_by="antiphon",
        root=name,
        aliases=(),
        ready=True,  # the server does not start without it
        hosted_tools=(),
    )
