"""Tools that this server runs by itself: who provides them, and who runs their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from antiphon.application.tools.calls import ToolCaller
from antiphon.domain.items import AnyItem
from antiphon.domain.offers import ToolDefinition
from antiphon.domain.tools import RequestTool


class ToolProvider(Protocol):
    """What provides tools of some types, for every response."""

    def handles(self, tool: RequestTool) -> bool:
        """Whether calls of `tool` are run here; if not, it is as if there was no such provider."""

    async def callers(
        self, asked: Sequence[ToolDefinition], conversation: Sequence[AnyItem], *, tenant: str
    ) -> Mapping[str, ToolCaller]:
        """Return what runs the calls of one response, by the kind of their tool.

        `asked` are the request's tools that are run here, of which there is one at least; of
        several the last is meant. Raises: RequestError, with the tool's path, for what it asks for
        and cannot have. Nothing is begun yet: a call may never come.
        """


def mark_hosted(definition: ToolDefinition, providers: Sequence[ToolProvider]) -> ToolDefinition:
    """Return the definition, marked if one of the providers runs its tool."""
    if any(provider.handles(definition.tool) for provider in providers):
        return replace(definition, is_server_run=True)
    return definition


async def find_callers(
    definitions: Sequence[ToolDefinition],
    providers: Sequence[ToolProvider],
    conversation: Sequence[AnyItem],
    *,
    tenant: str,
) -> Mapping[str, ToolCaller]:
    """Return what runs the calls of all these tools. Raises: RequestError."""
    found: dict[str, ToolCaller] = {}
    for provider in providers:
        if asked := [each for each in definitions if provider.handles(each.tool)]:
            found |= await provider.callers(asked, conversation, tenant=tenant)
    return found
