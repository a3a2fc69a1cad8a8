"""Search deferred tools by keywords, for the tool_search that this server runs
(docs/reference/api.md#tool-search).

A tool's score counts the words of the query that occur in its name or description; names count
more. A tool in a namespace also has the namespace's words. A tool without any of the words is not
found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from antiphon.domain import tools as t
from antiphon.domain.vocabulary.tool import is_called_directly

MAX_RESULTS = 8
NAME_WEIGHT = 3
MIN_STEM_CHARS = 4
MAX_DESCRIPTION_CHARS = 300
"""How much of a tool's description the list of deferred tools shows."""

CallableTool = t.FunctionTool | t.CustomTool
Identity = tuple[str | None, str]
"""Namespace and name."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W\d_]+")


def search(
    arguments: Any, tools: Sequence[t.RequestTool], *, limit: int = MAX_RESULTS
) -> list[t.AnyTool]:
    """Return the definitions of the best deferred tools; a namespace holds only its matching tools.

    >>> pay = t.FunctionTool(name="pay_invoice", description="Pays a bill.", defer_loading=True)
    >>> mail = t.FunctionTool(name="send_mail", defer_loading=True)
    >>> [tool.name for tool in search({"query": "which invoices are to be paid?"}, [mail, pay])]
    ['pay_invoice']
    """
    query_words = set(_words(" ".join(_strings(arguments))))
    hits = [
        (score, -position, namespace, tool)
        for position, (namespace, tool) in enumerate(_deferred_tools(tools))
        if (score := _score(query_words, namespace, tool))
    ]
    hits.sort(key=lambda hit: hit[:2], reverse=True)
    return _group_by_namespace([(namespace, tool) for _, _, namespace, tool in hits[:limit]])


def describe_deferred_tools(
    tools: Sequence[t.RequestTool], hidden: Collection[Identity]
) -> Iterator[str]:
    """Yield a line for each hidden tool, or for its namespace if it is in one."""
    described_names: set[str] = set()
    for namespace, tool in _deferred_tools(tools):
        entry = namespace or tool
        identity = (namespace.name if namespace else None, tool.name)
        if identity in hidden and entry.name not in described_names:
            described_names.add(entry.name)
            description = " ".join((entry.description or "").split())[:MAX_DESCRIPTION_CHARS]
            yield f"- {entry.name}: {description}" if description else f"- {entry.name}"


def _deferred_tools(
    tools: Sequence[t.RequestTool],
) -> Iterator[tuple[t.NamespaceTool | None, CallableTool]]:
    for tool in tools:
        namespace = tool if isinstance(tool, t.NamespaceTool) else None
        inner_tools = namespace.tools if namespace else (tool,)
        for inner in inner_tools:
            if (
                isinstance(inner, t.FunctionTool | t.CustomTool)
                and inner.defer_loading is True
                and is_called_directly(inner)
            ):
                yield namespace, inner


def _group_by_namespace(
    hits: Sequence[tuple[t.NamespaceTool | None, CallableTool]],
) -> list[t.AnyTool]:
    groups: dict[str, t.AnyTool] = {}
    for namespace, tool in hits:
        if namespace is None:
            groups[f"tool {tool.name}"] = tool
            continue
        group = groups.get(f"namespace {namespace.name}")
        members = group.tools if isinstance(group, t.NamespaceTool) else ()
        groups[f"namespace {namespace.name}"] = replace(namespace, tools=(*members, tool))
    return list(groups.values())


def _score(query_words: set[str], namespace: t.NamespaceTool | None, tool: CallableTool) -> int:
    names = _words(f"{namespace.name if namespace else ''} {tool.name}")
    descriptions = f"{namespace.description or '' if namespace else ''} {tool.description or ''}"
    description_words = _words(descriptions)
    return sum(
        NAME_WEIGHT * any(_is_similar(word, name) for name in names)
        + any(_is_similar(word, other) for other in description_words)
        for word in query_words
    )


def _is_similar(word: str, other: str) -> bool:
    """Return whether one word begins with the other, so that plurals match too.

    >>> _is_similar("invoices", "invoice"), _is_similar("in", "invoice")
    (True, False)
    """
    if word == other:
        return True
    short, long = sorted((word, other), key=len)
    return len(short) >= MIN_STEM_CHARS and long.startswith(short)


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
