"""Parse `tool_choice` into its normal form (docs/reference/api.md#tool-choice)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.domain import tools as t
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.kinds import TOOL_KINDS
from antiphon.domain.offers import mcp

CHOSEN_KINDS: Mapping[str, tuple[str, ...]] = {
    name: kind.chosen for name, kind in TOOL_KINDS.items() if kind.chosen
}
"""The kinds of tools that each type of tool_choice selects."""

SERVER_RUN_CHOICES = frozenset(name for name, kind in TOOL_KINDS.items() if kind.chosen is None)
"""Types of tool_choice for tools that only a server could run, and this one does not."""


def parse_tool_choice(
    value: str | Json | None,
    specs: Sequence[t.ToolSpec],
    labels: frozenset[str] = frozenset(),
) -> t.ToolChoice:
    """Return tool_choice in its normal form. Raises: RequestError with param tool_choice.

    `labels` are those of MCP servers, whose tools may not be known yet.
    """
    if value is None or value == "auto":
        return t.ToolChoice()
    if value == "none":
        return t.ToolChoice(mode="none")
    if value == "required":
        return t.ToolChoice(mode="required")
    if isinstance(value, str):
        raise invalid_tool_choice(f"it must be 'auto', 'none' or 'required', not {value!r}")
    kind = value.get("type")
    if kind == "allowed_tools":
        return _parse_allowed_tools(value, specs, labels)
    if isinstance(kind, str) and kind in CHOSEN_KINDS:
        names = _chosen_names(kind, value, specs, specs, labels)
        return t.ToolChoice(mode="required", names=names) if names else t.ToolChoice()
    if isinstance(kind, str) and kind in SERVER_RUN_CHOICES:
        raise invalid_tool_choice(f"this server runs no tool of type {kind!r}")
    types = ", ".join(sorted({"allowed_tools", *CHOSEN_KINDS}))
    raise invalid_tool_choice(f"unknown type {kind!r}. Supported types are: {types}")


def _parse_allowed_tools(
    value: Json, specs: Sequence[t.ToolSpec], labels: frozenset[str]
) -> t.ToolChoice:
    mode, entries = value.get("mode", "auto"), value.get("tools")
    if mode not in ("auto", "required"):
        raise invalid_tool_choice(f"its mode must be 'auto' or 'required', not {mode!r}")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise invalid_tool_choice("'tools' must be a list of tools")
    specs_by_name = _specs_by_name(specs)
    unnamed = [spec for spec in specs if spec.kind not in t.NAMED_KINDS]  # one of each kind
    names: set[str] = set()
    for entry in entries:
        kind = entry.get("type")
        if isinstance(kind, str) and kind in CHOSEN_KINDS:
            same_name_specs = specs_by_name.get(str(entry.get("name")), ())
            names |= _chosen_names(kind, entry, same_name_specs, unnamed, labels)
    if mode == "required" and not names and labels:
        mode = "auto"
    if mode == "required" and not names:
        raise invalid_tool_choice("'required' needs at least one allowed tool")
    return t.ToolChoice(mode=mode, names=frozenset(names))


def _specs_by_name(specs: Sequence[t.ToolSpec]) -> Mapping[str, Sequence[t.ToolSpec]]:
    """Return the specs by each of their names; a choice may list thousands of tools."""
    specs_by_name: dict[str, list[t.ToolSpec]] = {}
    for spec in specs:
        for name in {spec.client_name, spec.name, _qualified_name(spec)} - {None}:
            specs_by_name.setdefault(str(name), []).append(spec)
    return specs_by_name


def _chosen_names(
    kind: str,
    value: Json,
    same_name_specs: Sequence[t.ToolSpec],
    specs: Sequence[t.ToolSpec],
    labels: frozenset[str],
) -> frozenset[str]:
    """Return the names of the tools that `value` selects.

    `same_name_specs` are the specs with the value's name. The result is empty for an MCP server
    that lists no such tool.
    """
    label = value.get("server_label")
    if kind == "mcp" and isinstance(label, str) and label in labels:
        return _names_of_server(value, specs)
    name, namespace = value.get("name"), value.get("namespace")
    is_named = kind in t.NAMED_KINDS
    if is_named and not isinstance(name, str):
        raise invalid_tool_choice(f"a tool of type {kind!r} needs a name")
    names = frozenset(
        spec.name
        for spec in (same_name_specs if is_named else specs)
        if spec.kind in CHOSEN_KINDS[kind]
        and (not is_named or _has_name(spec, str(name), namespace))
    )
    if not names:
        which = f" named {name!r}" if is_named else ""
        raise invalid_tool_choice(f"'tools' has no {kind} tool{which} that can be called")
    return names


def _names_of_server(value: Json, specs: Sequence[t.ToolSpec]) -> frozenset[str]:
    label, name = value["server_label"], value.get("name")
    return frozenset(
        spec.name
        for spec in specs
        if mcp.is_mcp_tool(spec) and spec.namespace == label and name in (None, spec.client_name)
    )


def _has_name(spec: t.ToolSpec, name: str, namespace: Any) -> bool:
    # A client may send namespace and name, or like vLLM both in one, even if that is longer than
    # a model's name for the tool may be.
    has_both = (spec.namespace, spec.client_name) == (namespace, name)
    return has_both or name in (spec.name, _qualified_name(spec))


def _qualified_name(spec: t.ToolSpec) -> str | None:
    return f"{spec.namespace}{t.NAMESPACE_MARK}{spec.client_name}" if spec.namespace else None


def invalid_tool_choice(why: str) -> RequestError:
    return RequestError(f"Invalid 'tool_choice': {why}.", param="tool_choice", code="invalid_value")
