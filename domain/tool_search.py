"""Find deferred tools by words: what a search that the server runs loads
(docs/reference/api.md#tool-search).

A tool ranks by the words of the query that its name and its description have, names counting more;
a tool of a namespace has the namespace's words too. Nothing in common: not found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from antiphon.domain import tools as t

MOST_FOUND = 8
NAME_WEIGHT = 3
SHORTEST_STEM = 4
LONGEST_LISTED = 300
"""Characters of a description that the list of what can be found repeats."""

Named = t.FunctionTool | t.CustomTool
Identity = tuple[str | None, str]
"""Namespace and name."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W\d_]+")


def search(
    arguments: Any, tools: Sequence[t.RequestTool], *, most: int = MOST_FOUND
) -> list[t.AnyTool]:
    """Return the deferred tools that answer best, as definitions: namespaces with those found.

    >>> pay = t.FunctionTool(name="pay_invoice", description="Pays a bill.", defer_loading=True)
    >>> mail = t.FunctionTool(name="send_mail", defer_loading=True)
    >>> [tool.name for tool in search({"query": "which invoices are to be paid?"}, [mail, pay])]
    ['pay_invoice']
    """
    asked = set(_words(" ".join(_strings(arguments))))
    ranked = [
        (score, -position, space, tool)
        for position, (space, tool) in enumerate(_deferred(tools))
        if (score := _score(asked, space, tool))
    ]
    ranked.sort(key=lambda hit: hit[:2], reverse=True)
    return _gathered([(space, tool) for _, _, space, tool in ranked[:most]])


def describe_deferred_tools(
    tools: Sequence[t.RequestTool], hidden: Collection[Identity]
) -> Iterator[str]:
    """Return a line for each namespace or tool of which something is hidden."""
    seen: set[str] = set()
    for space, tool in _deferred(tools):
        what = space or tool
        if (space.name if space else None, tool.name) in hidden and what.name not in seen:
            seen.add(what.name)
            description = " ".join((what.description or "").split())[:LONGEST_LISTED]
            yield f"- {what.name}: {description}" if description else f"- {what.name}"


def _deferred(tools: Sequence[t.RequestTool]) -> Iterator[tuple[t.NamespaceTool | None, Named]]:
    for tool in tools:
        space = tool if isinstance(tool, t.NamespaceTool) else None
        inner = space.tools if space else (tool,)
        for each in inner:
            if isinstance(each, t.FunctionTool | t.CustomTool) and each.defer_loading is True:
                yield space, each


def _gathered(found: Sequence[tuple[t.NamespaceTool | None, Named]]) -> list[t.AnyTool]:
    gathered: dict[str, t.AnyTool] = {}
    for space, tool in found:
        if space is None:
            gathered[f"tool {tool.name}"] = tool
            continue
        before = gathered.get(f"namespace {space.name}")
        kept = before.tools if isinstance(before, t.NamespaceTool) else ()
        gathered[f"namespace {space.name}"] = replace(space, tools=(*kept, tool))
    return list(gathered.values())


def _score(asked: set[str], space: t.NamespaceTool | None, tool: Named) -> int:
    names = _words(f"{space.name if space else ''} {tool.name}")
    described = _words(f"{space.description or '' if space else ''} {tool.description or ''}")
    return sum(
        NAME_WEIGHT * any(_alike(word, name) for name in names)
        + any(_alike(word, each) for each in described)
        for word in asked
    )


def _alike(word: str, other: str) -> bool:
    """Say whether one word begins the other, so that a plural is found too.

    >>> _alike("invoices", "invoice"), _alike("in", "invoice")
    (True, False)
    """
    if word == other:
        return True
    short, long = sorted((word, other), key=len)
    return len(short) >= SHORTEST_STEM and long.startswith(short)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
