"""The specs that a model is given of each type of tool: name, description and parameters."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from antiphon.domain import tools as t
from antiphon.domain.json import Json
from antiphon.domain.kinds import TOOL_KINDS
from antiphon.domain.kinds.custom import grammar_chars
from antiphon.domain.vocabulary.item import type_of

MAX_GRAMMAR_CHARS = 40_960
"""The maximum number of characters in all grammars of a request; parsing a million takes seconds.
"""


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


def ignored_paths_in(tool: t.RequestTool, path: str) -> Iterator[str]:
    """Yield the paths of fields without effect."""
    if isinstance(tool, t.UnknownTool):
        return
    if (ignored := TOOL_KINDS[type_of(type(tool))].echo.ignored) is not None:
        yield from ignored(tool, path)


def echo_of(tool: t.RequestTool) -> t.Tool | Json:
    """Return what the Response shows of a tool: no secrets, and `strict` as it was understood."""
    if isinstance(tool, t.UnknownTool):
        return tool.raw
    kind = TOOL_KINDS[type_of(type(tool))].echo
    shown: t.Tool = tool if kind.echo is None else kind.echo(tool)
    return shown if kind.redact is None else kind.redact(msgspec.to_builtins(shown))
