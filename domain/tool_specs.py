"""The specs that a model is given for each type of tool: name, description and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from antiphon.domain import grammars, web_tool_specs
from antiphon.domain import tools as t
from antiphon.domain.client_tools import CLIENT_TOOLS, SearchArguments, parameters_of
from antiphon.domain.errors import InvalidGrammar, RequestError, missing_parameter
from antiphon.domain.json import Json

MAX_GRAMMAR_CHARS = 40_960
"""The maximum number of characters in all grammars of a request; parsing a million takes seconds.
"""


def is_strict(schema: Json | None) -> bool:
    """Return whether a schema is in strict form: closed objects, all properties required.

    >>> is_strict({"type": "object", "properties": {}, "additionalProperties": False})
    True
    """
    if not schema:
        return False
    return _is_closed(schema)


def _is_closed(schema: Any) -> bool:
    """Return whether all objects in a schema are closed; a schema may be any JSON from a client."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
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
    inner = [schema.get("items"), schema.get("anyOf"), *_values_of(schema.get("$defs"))]
    return all(map(_is_closed, [*inner, *_values_of(properties)]))


def _values_of(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _function_spec(tool: t.FunctionTool, path: str, namespace: str | None = None) -> t.ToolSpec:
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
        original_name=tool.name,
        deferred=tool.defer_loading is True,
    )


def _custom_spec(tool: t.CustomTool, path: str, namespace: str | None = None) -> t.ToolSpec:
    return t.ToolSpec(
        name=t.flat_name(namespace, tool.name),
        kind="custom",
        description=tool.description or "",
        grammar=_checked_grammar(tool.format, f"{path}.format"),
        namespace=namespace,
        original_name=tool.name,
        deferred=tool.defer_loading is True,
    )


def _checked_grammar(tool_format: Json, path: str) -> tuple[str, str] | None:
    if tool_format.get("type", "text") == "text":
        return None
    syntax, definition = tool_format.get("syntax"), tool_format.get("definition")
    if tool_format.get("type") != "grammar" or syntax not in ("lark", "regex"):
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
    except InvalidGrammar as error:
        raise RequestError(
            f"Invalid {syntax} grammar: {error.message}, at {error.place(definition)}.",
            param=f"{path}.definition",
            code="invalid_value",
        ) from None
    return syntax, definition


def grammar_size(tool: t.RequestTool) -> int:
    """Return the number of characters in a tool's grammars."""
    if isinstance(tool, t.NamespaceTool):
        return sum(map(grammar_size, tool.tools))
    definition = tool.format.get("definition") if isinstance(tool, t.CustomTool) else None
    return len(definition) if isinstance(definition, str) else 0


def ignored_paths_in(tool: t.RequestTool, path: str) -> Iterator[str]:
    """Yield the paths of fields without effect: grammars that no engine can enforce, and content
    types that web search does not find."""
    if isinstance(tool, t.NamespaceTool):
        for position, inner in enumerate(tool.tools):
            yield from ignored_paths_in(inner, f"{path}.tools[{position}]")
    if isinstance(tool, t.CustomTool):
        grammar = _checked_grammar(tool.format, f"{path}.format")
        if grammar is not None and grammars.read(*grammar) is None:
            yield f"{path}.format"
    if isinstance(tool, t.AnyWebSearch) and set(tool.search_content_types or ()) - {"text"}:
        yield f"{path}.search_content_types"


def _namespace_specs(tool: t.NamespaceTool, path: str) -> tuple[t.ToolSpec, ...]:
    return tuple(
        _function_spec(inner, f"{path}.tools[{position}]", tool.name)
        if isinstance(inner, t.FunctionTool)
        else _custom_spec(inner, f"{path}.tools[{position}]", tool.name)
        for position, inner in enumerate(tool.tools)
    )


def _client_tool_specs(kind: t.ToolKind, note: str = "") -> tuple[t.ToolSpec, ...]:
    tool = CLIENT_TOOLS[kind]
    spec = t.ToolSpec(
        name=tool.name,
        kind=kind,
        description=tool.description + note,
        parameters=parameters_of(tool.arguments),
        strict=True,
    )
    return (spec,)


def _shell_specs(tool: t.Shell, _: str) -> tuple[t.ToolSpec, ...]:
    return _client_tool_specs("shell") if tool.is_local else ()


def _computer_preview_specs(tool: t.ComputerUsePreview, _: str) -> tuple[t.ToolSpec, ...]:
    screen = f"{tool.display_width}x{tool.display_height} pixels, {tool.environment}"
    return _client_tool_specs("computer_use_preview", f" The screen: {screen}.")


def _tool_search_specs(tool: t.ToolSearch, path: str) -> tuple[t.ToolSpec, ...]:
    is_server_run = tool.execution != "client"
    kind: t.ToolKind = "server_tool_search" if is_server_run else "tool_search"
    schema = None if is_server_run else tool.parameters or None
    function = t.FunctionTool(name=CLIENT_TOOLS[kind].name, parameters=schema)
    client_spec = _function_spec(function, path)
    spec = t.ToolSpec(
        name=client_spec.name,
        kind=kind,
        description=tool.description or CLIENT_TOOLS[kind].description,
        parameters=client_spec.parameters or parameters_of(SearchArguments),
        strict=client_spec.parameters is None or client_spec.strict,
    )
    return (spec,)


SPECS: Mapping[type[Any], Callable[[Any, str], tuple[t.ToolSpec, ...]]] = {
    t.FunctionTool: lambda tool, path: (_function_spec(tool, path),),
    t.CustomTool: lambda tool, path: (_custom_spec(tool, path),),
    t.NamespaceTool: _namespace_specs,
    t.Shell: _shell_specs,
    t.LocalShell: lambda _, __: _client_tool_specs("local_shell"),
    t.ApplyPatch: lambda _, __: _client_tool_specs("apply_patch"),
    t.Computer: lambda _, __: _client_tool_specs("computer"),
    t.ComputerUse: lambda _, __: _client_tool_specs("computer"),
    t.ComputerUsePreview: _computer_preview_specs,
    t.ToolSearch: _tool_search_specs,
}
"""The specs for each type of tool. Other types are accepted without effect: unknown ones, and those
that only a server could run (docs/decisions/0018)."""

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
    **dict.fromkeys(t.WEB_SEARCHES.values(), lambda _, __: tuple(web_tool_specs.SPECS.values())),
    t.Shell: lambda _, __: _client_tool_specs(t.CONTAINER),
    t.FileSearch: lambda _, __: (FILE_SEARCH_SPEC,),
}
"""The specs for each type of tool when this server runs it."""
