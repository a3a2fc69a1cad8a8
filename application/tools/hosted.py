"""Tools that this server runs itself: their providers, and the callers for one response."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from antiphon.application.tools.calls import ToolCaller
from antiphon.domain.items import AnyItem
from antiphon.domain.offers.offer import ToolDefinition, callers_in, can_be_called
from antiphon.domain.tools import RequestTool


class ToolProvider(Protocol):
    """Provides tools of some types to every response."""

    @property
    @abstractmethod
    def tool_types(self) -> Sequence[str]:
        """The types of its tools, as the description of a model lists them."""

    @abstractmethod
    def handles(self, tool: RequestTool) -> bool:
        """Whether this provider runs the calls of `tool`; if not, it does nothing for it."""

    @abstractmethod
    async def callers(
        self, tools: Sequence[ToolDefinition], conversation: Sequence[AnyItem], *, tenant: str
    ) -> Mapping[str, ToolCaller]:
        """Return the callers for one response, by the kind of tool whose calls they run.

        `tools` are the request's tools that this provider handles: at least one; if there are
        several of one type, the last one counts. The images and files that the model is shown of
        the `conversation` are loaded. Nothing starts yet, since a call may never come.

        Raises: RequestError, with the tool's path, for an option that it cannot have.
        """


def mark_hosted(
    definitions: Sequence[ToolDefinition], providers: Sequence[ToolProvider]
) -> list[ToolDefinition]:
    """Return the definitions: those are server-run whose tool one of the providers handles, if the
    model may call it, or its programs."""
    hosted = [
        replace(each, is_server_run=True)
        if any(provider.handles(each.tool) for provider in providers)
        else each
        for each in definitions
    ]
    callers = callers_in(hosted)
    return [
        marked if can_be_called(marked, callers) else each
        for marked, each in zip(hosted, definitions, strict=True)
    ]


async def find_callers(
    definitions: Sequence[ToolDefinition],
    providers: Sequence[ToolProvider],
    conversation: Sequence[AnyItem],
    *,
    tenant: str,
) -> Mapping[str, ToolCaller]:
    """Return the callers for all tools that a provider handles. Raises: RequestError."""
    callers: dict[str, ToolCaller] = {}
    for provider in providers:
        if tools := [
            each for each in definitions if each.is_server_run and provider.handles(each.tool)
        ]:
            callers |= await provider.callers(tools, conversation, tenant=tenant)
    return callers
