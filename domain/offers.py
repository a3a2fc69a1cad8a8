"""What a model is offered: tools as specs, tool_choice in one normal form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain import mcp, tool_substitutions
from antiphon.domain import tools as t
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.tool_choice import TOOL_SEARCH_KINDS, invalid_tool_choice, parse_tool_choice
from antiphon.domain.tool_search import describe_deferred_tools
from antiphon.domain.tool_specs import (
    HOSTED_SPECS,
    MAX_GRAMMAR_CHARS,
    SPECS,
    grammar_size,
    ignored_paths_in,
    is_strict,
)

PREVIOUS_RESPONSE_PATH = "previous_response_id"
"""The path of definitions that this request did not bring itself."""


class ToolDefinition(Struct, frozen=True, kw_only=True):
    """A tool, and where it was defined: in `tools` (`from_item` false) or in an item.

    `is_server_run`: this server runs the tool itself or calls an MCP server for it.
    `listed_tools` are those that the MCP server has listed so far. `original` is what the client
    wrote, if `tool` replaces it (tool_substitutions.py).
    """

    tool: t.RequestTool
    path: str
    from_item: bool = False
    is_server_run: bool = False
    listed_tools: tuple[Json, ...] = ()
    original: t.RequestTool | None = None

    @property
    def must_be_unique(self) -> bool:
        """Whether another such definition of the same tool would be a mistake."""
        return not self.from_item and self.original is None


class Offer(Struct, frozen=True, kw_only=True):
    """`specs` go to the model, the Response shows `echo`; `ignored` are paths without effect.

    `definitions` and `tool_choice` are what it was made of.
    """

    specs: tuple[t.ToolSpec, ...] = ()
    choice: t.ToolChoice = t.ToolChoice()
    echo: tuple[Raw, ...] = ()
    ignored: tuple[str, ...] = ()
    definitions: tuple[ToolDefinition, ...] = ()
    tool_choice: str | Json | None = None


def make_offer(definitions: Sequence[ToolDefinition], tool_choice: str | Json | None) -> Offer:
    """Return what the model is offered. Raises: RequestError.

    A definition that comes later replaces one of its name; two in `tools` must not have one name.
    Deferred tools are held back if there is a search that can load them.
    """
    _check_labels(definitions)
    told: dict[object, tuple[t.ToolSpec, str]] = {}
    sole: set[object] = set()
    ignored: list[str] = []
    grammar_left = MAX_GRAMMAR_CHARS
    for each in definitions:
        grammar_left -= grammar_size(each.tool)
        if grammar_left < 0:
            raise RequestError(
                f"All grammars of a request may have {MAX_GRAMMAR_CHARS} characters together.",
                param=each.path,
                code="string_above_max_length",
            )
        specs = _specs(each)
        for spec in specs:
            if _key(spec) in sole and each.must_be_unique and spec.kind not in t.WEB_KINDS:
                raise _same_name(spec.client_name, each.path)
            told[_key(spec)] = (spec, each.path)
            sole |= {_key(spec)} if each.must_be_unique else set()
        if each.path != PREVIOUS_RESPONSE_PATH:  # what came with an earlier request was named there
            ignored += _without_effect(each, specs)
    ignored += _overridden(definitions)
    every = _with_names_of_their_own(list(told.values()))
    labels = frozenset(label for each in definitions if (label := _label(each)) is not None)
    choice = parse_tool_choice(tool_choice, every, labels)
    specs = _without_deferred(every, definitions, choice)
    if choice.mode == "required" and not specs and labels:
        choice = t.ToolChoice()  # a server was not asked yet, or in vain: nothing can be forced
    elif tool_choice == "required" and not specs:
        raise invalid_tool_choice("'required' needs at least one tool that a model can be offered")
    echo = (each.original or each.tool for each in definitions if not each.from_item)
    return Offer(
        specs=specs,
        choice=choice,
        echo=tuple(Raw(msgspec.json.encode(_echo(tool))) for tool in echo),
        ignored=tuple(ignored),
        definitions=tuple(definitions),
        tool_choice=tool_choice,
    )


def with_loaded_tools(before: Offer, tools: Sequence[t.RequestTool]) -> Offer:
    """Return the offer of a response's next turn, after a search that loaded these tools.

    What was to be called has been: only a restriction of tool_choice stays
    (docs/reference/api.md#tool-choice).
    """
    found = [
        ToolDefinition(tool=tool, path=PREVIOUS_RESPONSE_PATH, from_item=True) for tool in tools
    ]
    choice = before.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return make_offer([*before.definitions, *found], {**choice, "mode": "auto"})
    return make_offer([*before.definitions, *found], None)


def mcp_servers_of(offered: Offer) -> list[t.McpTool]:
    """Return the MCP servers whose tools can be called."""
    tools = (each.tool for each in offered.definitions if each.is_server_run)
    return [tool for tool in tools if isinstance(tool, t.McpTool)]


def with_listed_tools(before: Offer, listings: Mapping[str, tuple[Json, ...]]) -> Offer:
    """Return the offer with the tools that MCP servers have listed, by their label."""
    definitions = [
        replace(each, listed_tools=listings.get(str(_label(each)), each.listed_tools))
        for each in before.definitions
    ]
    return make_offer(definitions, before.tool_choice)


def _without_effect(definition: ToolDefinition, specs: Sequence[t.ToolSpec]) -> Iterator[str]:
    """Yield the paths of what is not heeded: the whole definition, or some of its fields."""
    if not specs and not definition.is_server_run:
        yield definition.path
        return
    yield from ignored_paths_in(definition.tool, definition.path)
    if definition.original is not None:
        yield from tool_substitutions.unused_fields(definition.original, definition.path)


def _overridden(definitions: Sequence[ToolDefinition]) -> list[str]:
    """Return the paths of web searches that say something else than the last one, which holds."""
    of_web = [
        (each, msgspec.to_builtins(each.tool) | {"type": ""})
        for each in definitions
        if each.is_server_run and isinstance(each.tool, t.AnyWebSearch)
    ]
    return [
        each.path
        for each, settings in of_web
        if settings != of_web[-1][1] and each.path != PREVIOUS_RESPONSE_PATH and not each.from_item
    ]


def _specs(definition: ToolDefinition) -> tuple[t.ToolSpec, ...]:
    tool = definition.tool
    if isinstance(tool, t.McpTool):
        return mcp.tool_specs_of(tool, definition.listed_tools)
    if definition.is_server_run and type(tool) in HOSTED_SPECS:
        return HOSTED_SPECS[type(tool)](tool, definition.path)
    specs = SPECS[type(tool)](tool, definition.path) if type(tool) in SPECS else ()
    if definition.from_item:  # being brought is being loaded
        return tuple(replace(spec, deferred=False) for spec in specs)
    return specs


def _label(definition: ToolDefinition) -> str | None:
    """Return the label of an MCP server that this server can call."""
    tool = definition.tool
    return tool.server_label if definition.is_server_run and isinstance(tool, t.McpTool) else None


def _check_labels(definitions: Sequence[ToolDefinition]) -> None:
    seen: set[str] = set()
    for each in definitions:
        label = _label(each)
        if label is not None and label in seen and each.must_be_unique:
            raise RequestError(
                f"Two MCP servers are labelled {label[:100]!r}.",
                param=f"{each.path}.server_label",
                code="invalid_value",
            )
        seen |= {label} if label is not None and each.must_be_unique else set()


def _key(spec: t.ToolSpec) -> object:
    """Return what two definitions of one tool have in common."""
    if mcp.is_mcp_tool(spec):
        return "mcp", spec.namespace, spec.client_name
    return (spec.namespace, spec.client_name) if spec.kind in t.NAMED_KINDS else spec.kind


def _with_names_of_their_own(told: Sequence[tuple[t.ToolSpec, str]]) -> list[t.ToolSpec]:
    """Return the specs with a name each: tools of a fixed name make way for those of a client."""
    taken: set[str] = set()
    for spec, path in told:
        if spec.kind in t.NAMED_KINDS:
            if spec.name in taken:
                raise _same_name(spec.name, path)
            taken.add(spec.name)
    named: list[t.ToolSpec] = []
    for spec, _ in told:
        name = spec.name
        while spec.kind not in t.NAMED_KINDS and name in taken:
            name += "_tool"
        taken.add(name)
        named.append(replace(spec, name=name))
    return named


def _without_deferred(
    specs: Sequence[t.ToolSpec], definitions: Sequence[ToolDefinition], choice: t.ToolChoice
) -> tuple[t.ToolSpec, ...]:
    """Return the specs to show at once; the search among them says what it can find.

    Without a search nothing could load the others. If only such may be called and one must be,
    these are shown.
    """
    must = choice.mode == "required"
    callable_now = any(choice.allows(spec.name) for spec in specs if not spec.deferred)
    forced = choice.names or () if must and not callable_now else ()
    hidden = {spec.name for spec in specs if spec.deferred and spec.name not in forced}
    if not hidden or not any(spec.kind in TOOL_SEARCH_KINDS for spec in specs):
        return tuple(spec for spec in specs if spec.kind != "server_tool_search")
    still = {(spec.namespace, spec.client_name) for spec in specs if spec.name in hidden}
    finds = "\n".join(describe_deferred_tools([each.tool for each in definitions], still))
    return tuple(
        replace(spec, description=f"{spec.description} There are:\n{finds}")
        if spec.kind in TOOL_SEARCH_KINDS
        else spec
        for spec in specs
        if spec.name not in hidden
    )


def _echo(tool: t.RequestTool) -> Any:
    if isinstance(tool, t.UnknownTool):
        return tool.raw
    if isinstance(tool, t.McpTool):
        return mcp.redact_secrets(msgspec.to_builtins(tool))
    if isinstance(tool, t.FunctionTool) and tool.strict is None:
        return replace(tool, strict=is_strict(tool.parameters))
    return tool


def _same_name(name: str, path: str) -> RequestError:
    return RequestError(f"Two tools are called {name!r}.", param=path, code="invalid_value")
