"""Offers: the tools of a request as specs for the model, with tool_choice in normal form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain import tools as t
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.kinds import CALL_KINDS
from antiphon.domain.kinds.program import PROGRAM, with_tools
from antiphon.domain.kinds.tool_search import TOOL_SEARCH_KINDS
from antiphon.domain.offers import mcp, tool_substitutions
from antiphon.domain.offers.tool_choice import invalid_tool_choice, parse_tool_choice
from antiphon.domain.offers.tool_search import describe_deferred_tools
from antiphon.domain.offers.tool_specs import (
    MAX_GRAMMAR_CHARS,
    echo_of,
    grammar_size,
    ignored_paths_in,
    specs_of,
)
from antiphon.domain.vocabulary.item import type_of
from antiphon.domain.vocabulary.tool import DIRECT, ONLY_DIRECT, PROGRAMMATIC, callers_of

PREVIOUS_RESPONSE_PATH = "previous_response_id"
"""The path of definitions that come from earlier requests."""


MAX_SPECS = 4096
"""The tools of a turn. Each costs some 100 microseconds to render, and more in the model."""


class ToolDefinition(Struct, frozen=True, kw_only=True):
    """A tool and the path where it was defined, in `tools` or, if `from_item`, in an item.

    If `is_server_run`, this server runs the tool itself or calls an MCP server for it.
    `listing` is what the MCP server has listed so far. `original` is what the client
    wrote, if `tool` replaces it (tool_substitutions.py). `note` follows the tool's description.
    """

    tool: t.RequestTool
    path: str
    from_item: bool = False
    is_server_run: bool = False
    listing: mcp.Listing = mcp.NO_LISTING
    original: t.RequestTool | None = None
    note: str = ""

    @property
    def must_be_unique(self) -> bool:
        """Whether a second definition of the same tool in `tools` is an error."""
        return not self.from_item and self.original is None


class Offer(Struct, frozen=True, kw_only=True):
    """The tools that a model is offered.

    `specs` go to the model, `program_specs` are what its programs may call, and the Response shows
    `echo`; `ignored` lists the paths of fields without effect. `definitions` and `tool_choice` are
    what the offer was made from.
    """

    specs: tuple[t.ToolSpec, ...] = ()
    program_specs: tuple[t.ToolSpec, ...] = ()
    choice: t.ToolChoice = t.ToolChoice()
    echo: tuple[Raw, ...] = ()
    ignored: tuple[str, ...] = ()
    definitions: tuple[ToolDefinition, ...] = ()
    tool_choice: str | Json | None = None


def make_offer(definitions: Sequence[ToolDefinition], tool_choice: str | Json | None) -> Offer:
    """Return the offer for these definitions. Raises: RequestError.

    A later definition replaces an earlier one of the same name, but two tools in `tools` must not
    have the same name. Deferred tools are left out if there is a tool search that can load them.
    """
    _check_labels(definitions)
    callers = callers_in(definitions)
    specs_by_key: dict[object, tuple[t.ToolSpec, str]] = {}
    unique_keys: set[object] = set()
    ignored: list[str] = []
    remaining_grammar_chars = MAX_GRAMMAR_CHARS
    for definition in definitions:
        remaining_grammar_chars -= grammar_size(definition.tool)
        if remaining_grammar_chars < 0:
            raise RequestError(
                "All grammars of a request together may have at most "
                f"{MAX_GRAMMAR_CHARS} characters.",
                param=definition.path,
                code="string_above_max_length",
            )
        specs = _specs_of(definition, callers)
        for spec in specs:
            key = _identity_of(spec)
            if key in unique_keys and definition.must_be_unique and spec.kind not in t.WEB_KINDS:
                raise _duplicate_name(spec.client_name, definition.path)
            specs_by_key[key] = (spec, definition.path)
            unique_keys |= {key} if definition.must_be_unique else set()
        if len(specs_by_key) > MAX_SPECS:
            raise RequestError(
                f"A model may be offered at most {MAX_SPECS} tools, those of namespaces and MCP "
                "servers included.",
                param=definition.path,
                code="array_above_max_length",
            )
        if definition.path != PREVIOUS_RESPONSE_PATH:  # the earlier response has reported its own
            ignored += _ignored_paths(definition, specs, callers)
    ignored += _overridden_web_searches(definitions)
    every_spec = _with_unique_names(list(specs_by_key.values()))
    all_specs = [spec for spec in every_spec if DIRECT in spec.callers]
    labels = frozenset(
        label for definition in definitions if (label := _server_label(definition)) is not None
    )
    _check_choice_is_run(tool_choice, definitions, callers)
    choice = parse_tool_choice(tool_choice, all_specs, labels)
    shown = _without_deferred(every_spec, definitions, choice)
    specs = tuple(spec for spec in shown if DIRECT in spec.callers)
    program_specs: tuple[t.ToolSpec, ...] = ()
    if PROGRAMMATIC in callers:
        program_specs = tuple(spec for spec in shown if PROGRAMMATIC in spec.callers)
        specs = tuple(
            with_tools(spec, program_specs, CALL_KINDS.values()) if spec.kind == PROGRAM else spec
            for spec in specs
        )
    if choice.mode == "required" and not specs and labels:
        choice = t.ToolChoice()  # the MCP servers have listed no tools (yet): none can be forced
    elif tool_choice == "required" and not specs:
        raise invalid_tool_choice("'required' needs at least one tool that a model can be offered")
    request_tools = (each.original or each.tool for each in definitions if not each.from_item)
    return Offer(
        specs=specs,
        program_specs=program_specs,
        choice=choice,
        echo=tuple(Raw(msgspec.json.encode(echo_of(tool))) for tool in request_tools),
        ignored=tuple(ignored),
        definitions=tuple(definitions),
        tool_choice=tool_choice,
    )


def with_loaded_tools(offer: Offer, tools: Sequence[t.RequestTool]) -> Offer:
    """Return the offer of a response's next turn, after a tool search has loaded these tools.

    The next turn is no longer forced to call a tool; a restriction to allowed tools remains
    (docs/reference/api.md#tool-choice).
    """
    loaded_tools = [
        ToolDefinition(tool=tool, path=PREVIOUS_RESPONSE_PATH, from_item=True) for tool in tools
    ]
    choice = offer.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return make_offer([*offer.definitions, *loaded_tools], {**choice, "mode": "auto"})
    return make_offer([*offer.definitions, *loaded_tools], None)


def mcp_servers_of(offer: Offer) -> list[t.McpTool]:
    """Return the MCP servers whose tools can be called."""
    tools = (each.tool for each in offer.definitions if each.is_server_run)
    return [tool for tool in tools if isinstance(tool, t.McpTool)]


def with_listings(offer: Offer, listings: Mapping[str, mcp.Listing]) -> Offer:
    """Return the offer with the tools that MCP servers have listed, by server label."""
    definitions = [
        replace(each, listing=listings.get(str(_server_label(each)), each.listing))
        for each in offer.definitions
    ]
    return make_offer(definitions, offer.tool_choice)


def with_notes(offer: Offer, notes: Mapping[str, str]) -> Offer:
    """Return the offer with these texts after the descriptions of the server's tools, by kind."""
    anybody = (DIRECT, PROGRAMMATIC)

    def note_of(definition: ToolDefinition) -> str:
        specs = _specs_of(definition, anybody) if definition.is_server_run else ()
        return next((notes[spec.kind] for spec in specs if spec.kind in notes), "")

    definitions = [replace(each, note=note_of(each)) for each in offer.definitions]
    return make_offer(definitions, offer.tool_choice)


def callers_in(definitions: Sequence[ToolDefinition]) -> Sequence[str]:
    """Return the callers that there are: with the tool for programs that is run, also those."""
    has_programs = any(
        each.is_server_run and isinstance(each.tool, t.ProgrammaticToolCalling)
        for each in definitions
    )
    return (DIRECT, PROGRAMMATIC) if has_programs else ONLY_DIRECT


def can_be_called(definition: ToolDefinition, callers: Sequence[str]) -> bool:
    """Return whether any of these callers may call the tool, as the client wrote it."""
    return not set(callers).isdisjoint(callers_of(definition.original or definition.tool))


def _ignored_paths(
    definition: ToolDefinition, specs: Sequence[t.ToolSpec], callers: Sequence[str]
) -> Iterator[str]:
    """Yield the paths without effect: that of the whole definition, or of some of its fields."""
    if not specs and not definition.is_server_run:
        yield definition.path
        return
    yield from ignored_paths_in(definition.tool, definition.path, callers)
    if definition.original is not None:
        yield from tool_substitutions.unused_fields(definition.original, definition.path)


def _overridden_web_searches(definitions: Sequence[ToolDefinition]) -> list[str]:
    """Return the paths of web searches whose settings differ from the last one, which applies."""
    web_searches = [
        (each, msgspec.to_builtins(each.tool) | {"type": ""})
        for each in definitions
        if each.is_server_run and isinstance(each.tool, t.AnyWebSearch)
    ]
    return [
        each.path
        for each, settings in web_searches
        if settings != web_searches[-1][1]
        and each.path != PREVIOUS_RESPONSE_PATH
        and not each.from_item
    ]


def _specs_of(definition: ToolDefinition, callers: Sequence[str]) -> tuple[t.ToolSpec, ...]:
    """Return the specs that one of the callers may call."""
    tool = definition.tool
    specs: tuple[t.ToolSpec, ...]
    if isinstance(tool, t.McpTool):
        specs = mcp.tool_specs_of(tool, definition.listing)
    else:
        specs = specs_of(tool, definition.path, is_server_run=definition.is_server_run)
    if definition.note:
        specs = tuple(
            replace(
                spec, description=f"{spec.description}\n{definition.note}", note=definition.note
            )
            for spec in specs
        )
    own_callers = callers_of(definition.original or tool)
    if own_callers != ONLY_DIRECT:
        # A tool search finds tools for the model alone.
        is_deferred = DIRECT in own_callers
        specs = tuple(
            replace(spec, callers=own_callers, deferred=spec.deferred and is_deferred)
            for spec in specs
        )
    if definition.from_item:  # an item that defines a tool also loads it
        specs = tuple(replace(spec, deferred=False) for spec in specs)
    return tuple(spec for spec in specs if not set(callers).isdisjoint(spec.callers))


def _check_choice_is_run(
    tool_choice: str | Json | None, definitions: Sequence[ToolDefinition], callers: Sequence[str]
) -> None:
    """Raises: RequestError if the choice forces a tool of the request that nobody runs."""
    kind = tool_choice.get("type") if isinstance(tool_choice, dict) else None
    same = [each for each in definitions if type_of(type(each.tool)) == kind]
    if same and not any(_specs_of(each, callers) or each.is_server_run for each in same):
        raise invalid_tool_choice(t.not_run_here(str(kind)))


def _server_label(definition: ToolDefinition) -> str | None:
    """Return the label if the definition is an MCP server that this server can call."""
    tool = definition.tool
    return tool.server_label if definition.is_server_run and isinstance(tool, t.McpTool) else None


def _check_labels(definitions: Sequence[ToolDefinition]) -> None:
    unique_labels: set[str] = set()
    for definition in definitions:
        label = _server_label(definition)
        if label is not None and label in unique_labels and definition.must_be_unique:
            raise RequestError(
                f"Two MCP servers have the label {label[:100]!r}.",
                param=f"{definition.path}.server_label",
                code="invalid_value",
            )
        unique_labels |= {label} if label is not None and definition.must_be_unique else set()


def _identity_of(spec: t.ToolSpec) -> object:
    """Return the key that two definitions of the same tool share."""
    if mcp.is_mcp_tool(spec):
        return "mcp", spec.namespace, spec.client_name
    return (spec.namespace, spec.client_name) if spec.kind in t.NAMED_KINDS else spec.kind


def _with_unique_names(specs_and_paths: Sequence[tuple[t.ToolSpec, str]]) -> list[t.ToolSpec]:
    """Return the specs under unique names; built-in tools are renamed in favor of the client's."""
    specs_and_paths = _with_namespaces_in_names(specs_and_paths)
    used_names: set[str] = set()
    for spec, path in specs_and_paths:
        if spec.kind in t.NAMED_KINDS:
            if spec.name in used_names:
                raise _duplicate_name(spec.name, path)
            used_names.add(spec.name)
    unique_specs: list[t.ToolSpec] = []
    for spec, _ in specs_and_paths:
        name = spec.name
        while spec.kind not in t.NAMED_KINDS and name in used_names:
            name += "_tool"
        used_names.add(name)
        unique_specs.append(replace(spec, name=name))
    return unique_specs


def _with_namespaces_in_names(
    specs_and_paths: Sequence[tuple[t.ToolSpec, str]],
) -> list[tuple[t.ToolSpec, str]]:
    """Put the namespace `functions` into the names that a tool outside of it has as well."""
    names = Counter(spec.name for spec, _ in specs_and_paths if spec.kind in t.NAMED_KINDS)
    return [
        (replace(spec, name=t.qualified_name(t.FUNCTIONS, spec.client_name)), path)
        if spec.namespace == t.FUNCTIONS and spec.kind in t.NAMED_KINDS and names[spec.name] > 1
        else (spec, path)
        for spec, path in specs_and_paths
    ]


def _without_deferred(
    specs: Sequence[t.ToolSpec], definitions: Sequence[ToolDefinition], choice: t.ToolChoice
) -> tuple[t.ToolSpec, ...]:
    """Return the specs without deferred tools; the tool search among them lists those.

    Without a tool search, no spec is left out, since nothing could load it. Deferred tools are
    shown if tool_choice requires a call and allows no other tools.
    """
    is_required = choice.mode == "required"
    has_callable = any(choice.allows(spec.name) for spec in specs if not spec.deferred)
    forced_names = choice.names or () if is_required and not has_callable else ()
    hidden_names = {spec.name for spec in specs if spec.deferred and spec.name not in forced_names}
    if not hidden_names or not any(spec.kind in TOOL_SEARCH_KINDS for spec in specs):
        return tuple(spec for spec in specs if spec.kind != "server_tool_search")
    hidden = {(spec.namespace, spec.client_name) for spec in specs if spec.name in hidden_names}
    listing = "\n".join(describe_deferred_tools([each.tool for each in definitions], hidden))
    return tuple(
        replace(spec, description=f"{spec.description} There are:\n{listing}")
        if spec.kind in TOOL_SEARCH_KINDS
        else spec
        for spec in specs
        if spec.name not in hidden_names
    )


def _duplicate_name(name: str, path: str) -> RequestError:
    return RequestError(f"Two tools have the name {name!r}.", param=path, code="invalid_value")
