"""What a model is offered: tools as specs, tool_choice in one normal form (api_surface 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain import grammars, mcp, stand_ins, web
from antiphon.domain import tools as t
from antiphon.domain.client_tools import CLIENT_TOOLS, SearchArguments, parameters_of
from antiphon.domain.errors import RequestError, UnreadableGrammar, missing_parameter
from antiphon.domain.json import Json
from antiphon.domain.tool_search import listed

Known = t.AnyTool | t.UnknownTool

SEARCHES = ("tool_search", "server_tool_search")
COMPUTERS = ("computer", "computer_use_preview")

WEB_SEARCHES = {
    name: kind for name, kind in t.TOOL_TYPES.items() if issubclass(kind, t.AnyWebSearch)
}

CHOSEN_KINDS: Mapping[str, tuple[str, ...]] = {
    "function": ("function",),
    "custom": ("custom",),
    "shell": ("shell", t.CONTAINER),
    "local_shell": ("local_shell",),
    "apply_patch": ("apply_patch",),
    "computer": COMPUTERS,
    "computer_use": COMPUTERS,
    "computer_use_preview": COMPUTERS,
    "tool_search": SEARCHES,
    "mcp": t.MCP,
    "code_interpreter": (t.PYTHON,),
    **dict.fromkeys(WEB_SEARCHES, t.WEB),
    "file_search": (t.FILE_SEARCH,),
}
"""The kinds of tools that a tool_choice of a type may mean."""

MOST_GRAMMAR = 40_960
"""Characters of all grammars of a request: reading takes some seconds for a million."""

SERVER_RUN_CHOICES = frozenset(
    {
        "image_generation",
        "programmatic_tool_calling",
    }
)
"""tool_choice objects that force a tool that only the server could run."""


EARLIER = "previous_response_id"
"""The path of definitions that this request did not bring itself."""


class Definition(Struct, frozen=True, kw_only=True):
    """A tool, and where it was defined: in `tools` (`later` false) or in an item.

    `is_run`: this server runs what it stands for: a tool of its own, or an MCP server, whose tools
    are `listed`, once it was asked. `asked` is what the client wrote, where `tool` stands in for it
    (stand_ins.py).
    """

    tool: Known
    path: str
    later: bool = False
    is_run: bool = False
    listed: tuple[Json, ...] = ()
    asked: Known | None = None

    @property
    def is_sole(self) -> bool:
        """Whether another such definition of the same tool would be a mistake."""
        return not self.later and self.asked is None


class Offer(Struct, frozen=True, kw_only=True):
    """`specs` go to the model, the Response shows `echo`; `ignored` are paths without effect.

    `definitions` and `tool_choice` are what it was made of.
    """

    specs: tuple[t.ToolSpec, ...] = ()
    choice: t.Choice = t.Choice()
    echo: tuple[Raw, ...] = ()
    ignored: tuple[str, ...] = ()
    definitions: tuple[Definition, ...] = ()
    tool_choice: str | Json | None = None


def offer(definitions: Sequence[Definition], tool_choice: str | Json | None) -> Offer:
    """Return what the model is offered. Raises: RequestError.

    A definition that comes later replaces one of its name; two in `tools` must not have one name.
    Deferred tools are held back if there is a search that can load them.
    """
    _check_labels(definitions)
    told: dict[object, tuple[t.ToolSpec, str]] = {}
    sole: set[object] = set()
    ignored: list[str] = []
    grammar_left = MOST_GRAMMAR
    for each in definitions:
        grammar_left -= _grammar_size(each.tool)
        if grammar_left < 0:
            raise RequestError(
                f"All grammars of a request may have {MOST_GRAMMAR} characters together.",
                param=each.path,
                code="string_above_max_length",
            )
        specs = _specs(each)
        for spec in specs:
            if _key(spec) in sole and each.is_sole and spec.kind not in t.WEB:
                raise _same_name(spec.client_name, each.path)
            told[_key(spec)] = (spec, each.path)
            sole |= {_key(spec)} if each.is_sole else set()
        if each.path != EARLIER:  # what came with an earlier request was named there
            ignored += _without_effect(each, specs)
    ignored += _overridden(definitions)
    every = _with_names_of_their_own(list(told.values()))
    labels = frozenset(label for each in definitions if (label := _label(each)) is not None)
    choice = choice_of(tool_choice, every, labels)
    specs = _without_deferred(every, definitions, choice)
    if choice.mode == "required" and not specs and labels:
        choice = t.Choice()  # a server was not asked yet, or in vain: nothing can be forced
    elif tool_choice == "required" and not specs:
        raise _bad_choice("'required' needs at least one tool that a model can be offered")
    echo = (each.asked or each.tool for each in definitions if not each.later)
    return Offer(
        specs=specs,
        choice=choice,
        echo=tuple(Raw(msgspec.json.encode(_echo(tool))) for tool in echo),
        ignored=tuple(ignored),
        definitions=tuple(definitions),
        tool_choice=tool_choice,
    )


def loaded(before: Offer, tools: Sequence[Known]) -> Offer:
    """Return the offer of a response's next turn, after a search that loaded these tools.

    What was to be called has been: only a restriction of tool_choice stays (api_surface 4.3).
    """
    found = [Definition(tool=tool, path=EARLIER, later=True) for tool in tools]
    choice = before.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return offer([*before.definitions, *found], {**choice, "mode": "auto"})
    return offer([*before.definitions, *found], None)


def servers_of(offered: Offer) -> list[t.McpTool]:
    """Return the MCP servers whose tools can be called."""
    tools = (each.tool for each in offered.definitions if each.is_run)
    return [tool for tool in tools if isinstance(tool, t.McpTool)]


def heard(before: Offer, listings: Mapping[str, tuple[Json, ...]]) -> Offer:
    """Return the offer with the tools that MCP servers have listed, by their label."""
    definitions = [
        replace(each, listed=listings.get(str(_label(each)), each.listed))
        for each in before.definitions
    ]
    return offer(definitions, before.tool_choice)


def choice_of(
    value: str | Json | None,
    specs: Sequence[t.ToolSpec],
    labels: frozenset[str] = frozenset(),
) -> t.Choice:
    """Return tool_choice in its normal form. Raises: RequestError with param tool_choice.

    `labels` are those of MCP servers, whose tools need not be known yet.
    """
    if value is None or value == "auto":
        return t.Choice()
    if value == "none":
        return t.Choice(mode="none")
    if value == "required":
        return t.Choice(mode="required")
    if isinstance(value, str):
        raise _bad_choice(f"{value!r} is none of 'auto', 'none', 'required'")
    kind = value.get("type")
    if kind == "allowed_tools":
        return _allowed(value, specs, labels)
    if isinstance(kind, str) and kind in CHOSEN_KINDS:
        names = _chosen(kind, value, specs, specs, labels)
        return t.Choice(mode="required", names=names) if names else t.Choice()
    if isinstance(kind, str) and kind in SERVER_RUN_CHOICES:
        raise _bad_choice(f"this server runs no tool of type {kind!r}")
    raise _bad_choice(f"unknown type {kind!r}")


def is_strict(schema: Json | None) -> bool:
    """Say whether a schema already has the strict form: closed objects, all properties required.

    >>> is_strict({"type": "object", "properties": {}, "additionalProperties": False})
    True
    """
    if not schema:
        return False
    return _closed(schema)


def _closed(schema: Any) -> bool:
    """Say whether all objects in a schema are closed; a schema is any JSON that a client sent."""
    if isinstance(schema, list):
        return all(map(_closed, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or properties is not None:
        required = schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return False
        if not isinstance(required, list):
            return False
        if not properties.keys() <= {name for name in required if isinstance(name, str)}:
            return False
    inner = [schema.get("items"), schema.get("anyOf"), *_values(schema.get("$defs"))]
    return all(map(_closed, [*inner, *_values(properties)]))


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _function(tool: t.FunctionTool, path: str, namespace: str | None = None) -> t.ToolSpec:
    schema = tool.parameters
    if schema is not None and schema.get("type", "object") != "object":
        raise RequestError(
            f"Invalid schema for function {tool.name!r}: its type must be 'object'.",
            param=f"{path}.parameters",
            code="invalid_function_parameters",
        )
    return t.ToolSpec(
        name=t.flat_name(namespace, tool.name),
        description=tool.description or "",
        parameters=schema,
        strict=is_strict(schema) if tool.strict is None else tool.strict,
        namespace=namespace,
        local=tool.name,
        deferred=tool.defer_loading is True,
    )


def _custom(tool: t.CustomTool, path: str, namespace: str | None = None) -> t.ToolSpec:
    return t.ToolSpec(
        name=t.flat_name(namespace, tool.name),
        kind="custom",
        description=tool.description or "",
        grammar=_grammar(tool.format, f"{path}.format"),
        namespace=namespace,
        local=tool.name,
        deferred=tool.defer_loading is True,
    )


def _grammar(form: Json, path: str) -> tuple[str, str] | None:
    if form.get("type", "text") == "text":
        return None
    syntax, definition = form.get("syntax"), form.get("definition")
    if form.get("type") != "grammar" or syntax not in ("lark", "regex"):
        raise RequestError(
            "A custom tool's format is {'type': 'text'} or {'type': 'grammar'} with syntax 'lark' "
            "or 'regex'.",
            param=path,
            code="invalid_value",
        )
    if not isinstance(definition, str):
        raise missing_parameter(f"{path}.definition")
    try:
        grammars.read(syntax, definition)
    except UnreadableGrammar as fault:
        raise RequestError(
            f"Invalid {syntax} grammar: {fault.message}, at {fault.place(definition)}.",
            param=f"{path}.definition",
            code="invalid_value",
        ) from None
    return syntax, definition


def _grammar_size(tool: Known) -> int:
    if isinstance(tool, t.NamespaceTool):
        return sum(map(_grammar_size, tool.tools))
    definition = tool.format.get("definition") if isinstance(tool, t.CustomTool) else None
    return len(definition) if isinstance(definition, str) else 0


def _without_effect(definition: Definition, specs: Sequence[t.ToolSpec]) -> Iterator[str]:
    """Yield the paths of what is not heeded: the whole definition, or some of its fields."""
    if not specs and not definition.is_run:
        yield definition.path
        return
    yield from _told_only(definition.tool, definition.path)
    if definition.asked is not None:
        yield from stand_ins.unheeded(definition.asked, definition.path)


def _told_only(tool: t.AnyTool | t.UnknownTool, path: str) -> Iterator[str]:
    """Yield the paths of what has no effect: grammars that no engine can enforce, pictures that no
    search finds."""
    if isinstance(tool, t.NamespaceTool):
        for position, inner in enumerate(tool.tools):
            yield from _told_only(inner, f"{path}.tools[{position}]")
    if isinstance(tool, t.CustomTool):
        grammar = _grammar(tool.format, f"{path}.format")
        if grammar is not None and grammars.read(*grammar) is None:
            yield f"{path}.format"
    if isinstance(tool, t.AnyWebSearch) and set(tool.search_content_types or ()) - {"text"}:
        yield f"{path}.search_content_types"


def _overridden(definitions: Sequence[Definition]) -> list[str]:
    """Return the paths of web searches that say something else than the last one, which holds."""
    of_web = [
        (each, msgspec.to_builtins(each.tool) | {"type": ""})
        for each in definitions
        if each.is_run and isinstance(each.tool, t.AnyWebSearch)
    ]
    return [
        each.path
        for each, settings in of_web
        if settings != of_web[-1][1] and each.path != EARLIER and not each.later
    ]


def _namespace(tool: t.NamespaceTool, path: str) -> tuple[t.ToolSpec, ...]:
    return tuple(
        _function(inner, f"{path}.tools[{position}]", tool.name)
        if isinstance(inner, t.FunctionTool)
        else _custom(inner, f"{path}.tools[{position}]", tool.name)
        for position, inner in enumerate(tool.tools)
    )


def _typed(kind: t.ToolKind, note: str = "") -> tuple[t.ToolSpec, ...]:
    tool = CLIENT_TOOLS[kind]
    spec = t.ToolSpec(
        name=tool.name,
        kind=kind,
        description=tool.description + note,
        parameters=parameters_of(tool.arguments),
        strict=True,
    )
    return (spec,)


def _shell(tool: t.Shell, _: str) -> tuple[t.ToolSpec, ...]:
    return _typed("shell") if tool.is_local else ()


def _computer_preview(tool: t.ComputerUsePreview, _: str) -> tuple[t.ToolSpec, ...]:
    screen = f"{tool.display_width}x{tool.display_height} pixels, {tool.environment}"
    return _typed("computer_use_preview", f" The screen: {screen}.")


def _tool_search(tool: t.ToolSearch, path: str) -> tuple[t.ToolSpec, ...]:
    server = tool.execution != "client"
    kind: t.ToolKind = "server_tool_search" if server else "tool_search"
    schema = None if server else tool.parameters or None
    asked = _function(t.FunctionTool(name=CLIENT_TOOLS[kind].name, parameters=schema), path)
    spec = t.ToolSpec(
        name=asked.name,
        kind=kind,
        description=tool.description or CLIENT_TOOLS[kind].description,
        parameters=asked.parameters or parameters_of(SearchArguments),
        strict=asked.parameters is None or asked.strict,
    )
    return (spec,)


SPECS: Mapping[type[Any], Callable[[Any, str], tuple[t.ToolSpec, ...]]] = {
    t.FunctionTool: lambda tool, path: (_function(tool, path),),
    t.CustomTool: lambda tool, path: (_custom(tool, path),),
    t.NamespaceTool: _namespace,
    t.Shell: _shell,
    t.LocalShell: lambda _, __: _typed("local_shell"),
    t.ApplyPatch: lambda _, __: _typed("apply_patch"),
    t.Computer: lambda _, __: _typed("computer"),
    t.ComputerUse: lambda _, __: _typed("computer"),
    t.ComputerUsePreview: _computer_preview,
    t.ToolSearch: _tool_search,
}
"""How a model is told of a tool; a type that is not here is accepted without effect, be it unknown
or one that only a server could run (docs/decisions/0018)."""


PYTHON_SPEC = t.ToolSpec(
    name=t.PYTHON,
    kind=t.PYTHON,
    description=(
        "Runs Python and returns what it prints, and the value of its last line. Variables last "
        "from call to call. Files are in /mnt/data. There is no network."
    ),
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python code to run."}},
        "required": ["code"],
        "additionalProperties": False,
    },
)


FILE_SEARCH_SPEC = t.ToolSpec(
    name=t.FILE_SEARCH,
    kind=t.FILE_SEARCH,
    description=(
        "Searches the user's files and returns the passages that fit the queries best. Before each "
        "is a marker, 【0:1†report.pdf】 for example. Cite the passages that an answer uses by "
        "their markers, as they are, right after what they say."
    ),
    parameters={
        "type": "object",
        "properties": {
            "queries": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": 10,
                "description": "What to search for: questions or words, each by itself.",
            }
        },
        "required": ["queries"],
        "additionalProperties": False,
    },
)


HOSTED_SPECS: Mapping[type[Any], Callable[[Any, str], tuple[t.ToolSpec, ...]]] = {
    t.CodeInterpreter: lambda _, __: (PYTHON_SPEC,),
    **dict.fromkeys(WEB_SEARCHES.values(), lambda _, __: tuple(web.SPECS.values())),
    t.Shell: lambda _, __: _typed(t.CONTAINER),
    t.FileSearch: lambda _, __: (FILE_SEARCH_SPEC,),
}
"""How a model is told of a tool that this server runs."""


def _specs(definition: Definition) -> tuple[t.ToolSpec, ...]:
    tool = definition.tool
    if isinstance(tool, t.McpTool):
        return mcp.specs(tool, definition.listed)
    if definition.is_run and type(tool) in HOSTED_SPECS:
        return HOSTED_SPECS[type(tool)](tool, definition.path)
    specs = SPECS[type(tool)](tool, definition.path) if type(tool) in SPECS else ()
    if definition.later:  # being brought is being loaded
        return tuple(replace(spec, deferred=False) for spec in specs)
    return specs


def _label(definition: Definition) -> str | None:
    """Return the label of an MCP server that this server can call."""
    tool = definition.tool
    return tool.server_label if definition.is_run and isinstance(tool, t.McpTool) else None


def _check_labels(definitions: Sequence[Definition]) -> None:
    seen: set[str] = set()
    for each in definitions:
        label = _label(each)
        if label is not None and label in seen and each.is_sole:
            raise RequestError(
                f"Two MCP servers are labelled {label[:100]!r}.",
                param=f"{each.path}.server_label",
                code="invalid_value",
            )
        seen |= {label} if label is not None and each.is_sole else set()


def _key(spec: t.ToolSpec) -> object:
    """Return what two definitions of one tool have in common."""
    if mcp.is_mcp(spec):
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
    specs: Sequence[t.ToolSpec], definitions: Sequence[Definition], choice: t.Choice
) -> tuple[t.ToolSpec, ...]:
    """Return the specs to show at once; the search among them says what it can find.

    Without a search nothing could load the others. If only such may be called and one must be,
    these are shown.
    """
    must = choice.mode == "required"
    callable_now = any(choice.allows(spec.name) for spec in specs if not spec.deferred)
    forced = choice.names or () if must and not callable_now else ()
    hidden = {spec.name for spec in specs if spec.deferred and spec.name not in forced}
    if not hidden or not any(spec.kind in SEARCHES for spec in specs):
        return tuple(spec for spec in specs if spec.kind != "server_tool_search")
    still = {(spec.namespace, spec.client_name) for spec in specs if spec.name in hidden}
    finds = "\n".join(listed([each.tool for each in definitions], still))
    return tuple(
        replace(spec, description=f"{spec.description} There are:\n{finds}")
        if spec.kind in SEARCHES
        else spec
        for spec in specs
        if spec.name not in hidden
    )


def _echo(tool: t.AnyTool | t.UnknownTool) -> Any:
    if isinstance(tool, t.UnknownTool):
        return tool.raw
    if isinstance(tool, t.McpTool):
        return mcp.redacted(msgspec.to_builtins(tool))
    if isinstance(tool, t.FunctionTool) and tool.strict is None:
        return replace(tool, strict=is_strict(tool.parameters))
    return tool


def _same_name(name: str, path: str) -> RequestError:
    return RequestError(f"Two tools are called {name!r}.", param=path, code="invalid_value")


def _allowed(value: Json, specs: Sequence[t.ToolSpec], labels: frozenset[str]) -> t.Choice:
    mode, entries = value.get("mode", "auto"), value.get("tools")
    if mode not in ("auto", "required"):
        raise _bad_choice(f"mode {mode!r} is none of 'auto', 'required'")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _bad_choice("'tools' must be a list of tools")
    called = _by_name(specs)
    unnamed = [spec for spec in specs if spec.kind not in t.NAMED_KINDS]  # one of a kind
    names: set[str] = set()
    for entry in entries:
        kind = entry.get("type")
        if isinstance(kind, str) and kind in CHOSEN_KINDS:
            named = called.get(str(entry.get("name")), ())
            names |= _chosen(kind, entry, named, unnamed, labels)
    if mode == "required" and not names and labels:
        mode = "auto"
    if mode == "required" and not names:
        raise _bad_choice("'required' needs at least one allowed tool")
    return t.Choice(mode=mode, names=frozenset(names))


def _by_name(specs: Sequence[t.ToolSpec]) -> Mapping[str, Sequence[t.ToolSpec]]:
    """Return the specs by each name that may mean them: a choice may list thousands."""
    found: dict[str, list[t.ToolSpec]] = {}
    for spec in specs:
        for name in {spec.client_name, spec.name, _joined(spec)} - {None}:
            found.setdefault(str(name), []).append(spec)
    return found


def _chosen(
    kind: str,
    value: Json,
    called: Sequence[t.ToolSpec],
    specs: Sequence[t.ToolSpec],
    labels: frozenset[str],
) -> frozenset[str]:
    """Return the names of the tools that are meant; none of a server that lists no such tool.

    `called` are those of the value's name.
    """
    label = value.get("server_label")
    if kind == "mcp" and isinstance(label, str) and label in labels:
        return _of_server(value, specs)
    name, namespace = value.get("name"), value.get("namespace")
    is_named = kind in t.NAMED_KINDS
    if is_named and not isinstance(name, str):
        raise _bad_choice(f"a tool of type {kind!r} needs a name")
    found = frozenset(
        spec.name
        for spec in (called if is_named else specs)
        if spec.kind in CHOSEN_KINDS[kind]
        and (not is_named or _is_called(spec, str(name), namespace))
    )
    if not found:
        which = f" called {name!r}" if is_named else ""
        raise _bad_choice(f"there is no {kind} tool{which} in 'tools' that can be called")
    return found


def _of_server(value: Json, specs: Sequence[t.ToolSpec]) -> frozenset[str]:
    label, name = value["server_label"], value.get("name")
    return frozenset(
        spec.name
        for spec in specs
        if mcp.is_mcp(spec) and spec.namespace == label and name in (None, spec.client_name)
    )


def _is_called(spec: t.ToolSpec, name: str, namespace: Any) -> bool:
    # By both names, or by the two in one, as vLLM has it; also where that is too long for a model.
    is_both = (spec.namespace, spec.client_name) == (namespace, name)
    return is_both or name in (spec.name, _joined(spec))


def _joined(spec: t.ToolSpec) -> str | None:
    return f"{spec.namespace}{t.NAMESPACE_MARK}{spec.client_name}" if spec.namespace else None


def _bad_choice(why: str) -> RequestError:
    return RequestError(f"Invalid 'tool_choice': {why}.", param="tool_choice", code="invalid_value")
