"""The specs that a model is given of each type of tool: name, description and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.domain import tools as t
from antiphon.domain.json import Json
from antiphon.domain.kinds import TOOL_KINDS
from antiphon.domain.kinds.custom import grammar_chars
from antiphon.domain.vocabulary.item import type_of
from antiphon.domain.vocabulary.tool import ONLY_DIRECT, PROGRAMMATIC, callers_of

MAX_GRAMMAR_CHARS = 40_960
"""The maximum number of characters in all grammars of a request; parsing a million takes seconds.
"""

WITHOUT_EFFECT: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "allowed_callers": ("allowed_callers", (ONLY_DIRECT,)),
    "async_": ("async", (False,)),
    "output_schema": ("output_schema", ()),
}
"""The fields of tools that do nothing here: by attribute, the name in JSON, and the values that ask
for what happens anyway. Those of `FOR_PROGRAMS` do something if the request offers programs."""

FOR_PROGRAMS = ("allowed_callers", "output_schema")


def specs_of(tool: t.RequestTool, path: str, *, is_server_run: bool) -> tuple[t.ToolSpec, ...]:
    """Return the specs of a tool, none if it is of an unknown type or only a server could run it
    (docs/decisions/0018). Raises: RequestError."""
    if isinstance(tool, t.UnknownTool):
        return ()
    kind = TOOL_KINDS[type_of(type(tool))]
    specs = (is_server_run and kind.server_specs) or kind.client_specs
    return specs(tool, path) if specs is not None else ()


def grammar_size(tool: t.RequestTool) -> int:
    """Return the number of characters in a tool's grammars."""
    if isinstance(tool, t.NamespaceTool):
        return sum(map(grammar_size, tool.tools))
    return grammar_chars(tool) if isinstance(tool, t.CustomTool) else 0


def ignored_paths_in(tool: t.RequestTool, path: str, callers: Sequence[str]) -> Iterator[str]:
    """Yield the paths of fields without effect; `callers` are those that there are."""
    if isinstance(tool, t.UnknownTool):
        return
    is_for_programs = PROGRAMMATIC in callers and PROGRAMMATIC in callers_of(tool)
    for attribute, (name, harmless) in WITHOUT_EFFECT.items():
        has_effect = is_for_programs and attribute in FOR_PROGRAMS
        if not has_effect and getattr(tool, attribute, None) not in (None, UNSET, *harmless):
            yield f"{path}.{name}"
    if isinstance(tool, t.NamespaceTool):
        for position, inner in enumerate(tool.tools):
            inner_path = f"{path}.tools[{position}]"
            if set(callers).isdisjoint(callers_of(inner)):
                yield inner_path
            else:
                yield from ignored_paths_in(inner, inner_path, callers)
    if (ignored := TOOL_KINDS[type_of(type(tool))].echo.ignored) is not None:
        yield from ignored(tool, path)


def echo_of(tool: t.RequestTool) -> t.Tool | Json:
    """Return what the Response shows of a tool: no secrets, and `strict` as it was understood."""
    if isinstance(tool, t.UnknownTool):
        return tool.raw
    kind = TOOL_KINDS[type_of(type(tool))].echo
    shown: t.Tool = tool if kind.echo is None else kind.echo(tool)
    return shown if kind.redact is None else kind.redact(msgspec.to_builtins(shown))
