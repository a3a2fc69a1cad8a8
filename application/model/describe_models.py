"""Describe the models of this server: what each can do, and whether it is ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from antiphon.application.model.models import READY, Models
from antiphon.application.ports import Model
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import EngineDead


class Capabilities(Struct, frozen=True, kw_only=True):
    """The description that a started model gives of itself."""

    context_length: int
    reads_images: bool
    efforts: Sequence[str]
    format_name: str

    @property
    def input_modalities(self) -> Sequence[Literal["text", "image"]]:
        return ("text", "image") if self.reads_images else ("text",)


class ModelDescription(Struct, frozen=True, kw_only=True):
    """A model under all of its names, the first one first.

    `hosted_tools` are the types of tools that this server runs for it. `capabilities` are unknown
    before the model has started, and may be while it is started again.
    """

    names: Sequence[str]
    is_ready: bool
    hosted_tools: Sequence[str]
    capabilities: Capabilities | None


class DescribeModels:
    """Describes the models that a key may use, with the tools that it may use."""

    def __init__(self, models: Models, *, hosted_tools: Sequence[str]) -> None:
        self._models = models
        self._hosted_tools = hosted_tools

    async def __call__(self, policy: KeyPolicy) -> Sequence[ModelDescription]:
        return await self._describe(self._models.allowed_by(policy), policy)

    async def describe(self, name: str, policy: KeyPolicy) -> ModelDescription:
        """Raises: NotFound, also for a model that the key may not use."""
        models = self._models.allowed_by(policy)
        models.exists(name)
        (found,) = await self._describe(Models([models.by_name[name]]), policy)
        return found

    async def _describe(self, models: Models, policy: KeyPolicy) -> Sequence[ModelDescription]:
        states = await models.states()
        tools = [kind for kind in self._hosted_tools if policy.allows_tool(kind)]
        return [_description(each, states[each.names[0]], tools) for each in models.all]


def _description(model: Model, state: str, hosted_tools: Sequence[str]) -> ModelDescription:
    capabilities = _capabilities_of(model)
    return ModelDescription(
        names=model.names,
        is_ready=state == READY and capabilities is not None,
        hosted_tools=hosted_tools,
        capabilities=capabilities,
    )


def _capabilities_of(model: Model) -> Capabilities | None:
    try:
        return Capabilities(
            context_length=model.context_length,
            reads_images=model.reads_images,
            efforts=tuple(model.efforts),
            format_name=model.format_name,
        )
    except EngineDead:
        return None
