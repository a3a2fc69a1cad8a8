"""The kinds of items and tools, one module each: every table of them is derived from here.

A module of this folder declares one `KIND`. What it declares is checked when it is imported, and
what all kinds declare together is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from antiphon.domain.vocabulary.item import type_of
from antiphon.domain.vocabulary.kind import CallKind, IncompleteKind, ItemKind, Kind, ToolKind

K = TypeVar("K")
V = TypeVar("V")


def _load(name: str) -> Kind:
    kind = getattr(import_module(f"{__name__}.{name}"), "KIND", None)
    if not isinstance(kind, Kind) or kind.name != name:
        raise IncompleteKind(f"The module domain/kinds/{name}.py declares no kind {name!r}: KIND.")
    return kind


def _by(key: Callable[[V], K], values: Iterable[V], what: str) -> Mapping[K, V]:
    table: dict[K, V] = {}
    for value in values:
        if key(value) in table:
            raise IncompleteKind(f"Two kinds have the {what} {key(value)!r}.")
        table[key(value)] = value
    return table


KINDS: tuple[Kind, ...] = tuple(_load(module.name) for module in iter_modules(__path__))

ITEM_KINDS: Mapping[str, ItemKind] = _by(
    lambda each: type_of(each.item), (each for kind in KINDS for each in kind.items), "type of item"
)
TOOL_KINDS: Mapping[str, ToolKind] = _by(
    lambda each: type_of(each.tool), (each for kind in KINDS for each in kind.tools), "type of tool"
)
CALL_KINDS: Mapping[str, CallKind] = _by(
    lambda each: each.name, (each for kind in KINDS for each in kind.calls), "kind of call"
)
