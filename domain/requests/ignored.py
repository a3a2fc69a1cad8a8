"""The parts of a request without effect: a header names them, or a strict server refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.domain import tools as t
from antiphon.domain.errors import RequestError
from antiphon.domain.offers.offer import Offer, ToolDefinition
from antiphon.domain.requests.request import IGNORED_FIELDS, CreateResponse
from antiphon.domain.vocabulary.item import type_of
from antiphon.domain.vocabulary.tool import is_called_directly

NOTHING_OFFERED = Offer()

_IGNORED = {path: (path.split("."), (None, *harmless)) for path, harmless in IGNORED_FIELDS.items()}
"""By path, the names on the way to the field, and the values that have no effect anyway."""


def ignored_paths(request: CreateResponse, offered: Offer) -> tuple[str, ...]:
    """Return the paths of everything in the request that has no effect here.

    >>> request = CreateResponse(model="m", input="Hi", service_tier="scale")
    >>> ignored_paths(request, Offer(ignored=("tools[0]",)))
    ('tools[0]', 'service_tier')
    """
    fields = [
        path
        for path, (names, harmless) in _IGNORED.items()
        if getattr(request, names[0]) not in harmless and _value(request, names) not in harmless
    ]
    seen: set[type] = set()
    more = []
    for index, entry in enumerate(request.context_management or ()):
        if type(entry) in seen:  # only the first of each type counts
            more.append(f"context_management[{index}]")
        seen.add(type(entry))
    return (*offered.ignored, *fields, *more)


def refuse_ignored(paths: Sequence[str], offered: Offer = NOTHING_OFFERED) -> None:
    """Raises: RequestError for the first path, if there is one; it names the others as well."""
    if not paths:
        return
    first, *others = paths
    also = f" Nor would {', '.join(others)}." if others else ""
    raise RequestError(
        f"{first!r} would have no effect: {_reason(first, offered)}.{also}",
        param=first,
        code="unsupported_parameter",
    )


def _reason(path: str, offered: Offer) -> str:
    definition = next((each for each in offered.definitions if each.path == path), None)
    return "this server does nothing with it" if definition is None else _why_not(definition)


def _why_not(definition: ToolDefinition) -> str:
    tool = definition.original or definition.tool
    if not is_called_directly(tool):
        return (
            "only programs may call it (allowed_callers), and the request has no tool "
            "'programmatic_tool_calling' that this server runs"
        )
    if isinstance(tool, t.McpTool) and not definition.is_server_run:
        return f"this server cannot call the MCP server labelled {tool.server_label[:64]!r}"
    if definition.is_server_run:
        return "a later definition of the same tool holds in its place"
    return t.not_run_here(type_of(type(tool)))


def _value(request: CreateResponse, names: Sequence[str]) -> Any:
    found: Any = request
    for name in names:
        found = None if found is None else getattr(found, name)
    return found
