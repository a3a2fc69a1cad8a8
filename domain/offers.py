"""What a model is offered: tools as specs, tool_choice in one normal form (api_surface 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain import grammars
from antiphon.domain import tools as t
from antiphon.domain.errors import RequestError, UnreadableGrammar, missing_parameter

Json = dict[str, Any]
NAMESPACE_MARK = "__"
MAX_FLAT_NAME = 128

HOSTED_CHOICES = frozenset(
    {
        "file_search",
        "web_search",
        "web_search_preview",
        "web_search_preview_2025_03_11",
        "image_generation",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "apply_patch",
        "shell",
        "programmatic_tool_calling",
        "mcp",
    }
)
"""tool_choice objects that force a tool that is no function."""


class Offer(Struct, frozen=True, kw_only=True):
    """`specs` go to the model, the Response shows `echo`; `ignored` are paths without effect."""

    specs: tuple[t.ToolSpec, ...] = ()
    choice: t.Choice = t.Choice()
    echo: tuple[Raw, ...] = ()
    ignored: tuple[str, ...] = ()


def offer(tools: Sequence[t.AnyTool | t.UnknownTool], tool_choice: str | Json | None) -> Offer:
    """Return what the model is offered. Raises: RequestError."""
    specs: list[t.ToolSpec] = []
    ignored: list[str] = []
    for position, tool in enumerate(tools):
        path = f"tools[{position}]"
        _refuse_server_run(tool, path)
        told = SPECS[type(tool)](tool, path) if type(tool) in SPECS else ()
        specs.extend(told)
        if not told:
            ignored.append(path)
        ignored.extend(_told_only(tool, path))
    _refuse_duplicates(specs)
    return Offer(
        specs=tuple(specs),
        choice=choice_of(tool_choice, specs),
        echo=tuple(Raw(msgspec.json.encode(_echo(tool))) for tool in tools),
        ignored=tuple(ignored),
    )


def choice_of(value: str | Json | None, specs: Sequence[t.ToolSpec]) -> t.Choice:
    """Return tool_choice in its normal form. Raises: RequestError with param tool_choice."""
    if value is None or value == "auto":
        return t.Choice()
    if value == "none":
        return t.Choice(mode="none")
    if value == "required":
        if not specs:
            raise _bad_choice("'required' needs at least one tool in 'tools'")
        return t.Choice(mode="required")
    if isinstance(value, str):
        raise _bad_choice(f"{value!r} is none of 'auto', 'none', 'required'")
    kind = value.get("type")
    if kind in ("function", "custom"):
        return t.Choice(mode="required", names=frozenset({_named(value, specs)}))
    if kind == "allowed_tools":
        return _allowed(value, specs)
    if isinstance(kind, str) and kind in HOSTED_CHOICES:
        raise _bad_choice(f"the request offers no tool of type {kind!r} that could be forced")
    raise _bad_choice(f"unknown type {kind!r}")


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name that the model writes.

    >>> flat_name("crm", "find")
    'crm__find'
    """
    return f"{namespace}{NAMESPACE_MARK}{name}" if namespace else name


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
        if not isinstance(required, list) or not all(name in required for name in properties):
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
        name=flat_name(namespace, tool.name),
        description=tool.description or "",
        parameters=schema,
        strict=is_strict(schema) if tool.strict is None else tool.strict,
        namespace=namespace,
    )


def _custom(tool: t.CustomTool, path: str, namespace: str | None = None) -> t.ToolSpec:
    return t.ToolSpec(
        name=flat_name(namespace, tool.name),
        kind="custom",
        description=tool.description or "",
        grammar=_grammar(tool.format, f"{path}.format"),
        namespace=namespace,
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


def _told_only(tool: t.AnyTool | t.UnknownTool, path: str) -> Iterator[str]:
    """Yield the paths of grammars that the model is told of but no engine can enforce."""
    if isinstance(tool, t.NamespaceTool):
        for position, inner in enumerate(tool.tools):
            yield from _told_only(inner, f"{path}.tools[{position}]")
    if isinstance(tool, t.CustomTool):
        grammar = _grammar(tool.format, f"{path}.format")
        if grammar is not None and grammars.read(*grammar) is None:
            yield f"{path}.format"


def _namespace(tool: t.NamespaceTool, path: str) -> tuple[t.ToolSpec, ...]:
    specs = []
    for position, inner in enumerate(tool.tools):
        where = f"{path}.tools[{position}]"
        if len(flat_name(tool.name, inner.name)) > MAX_FLAT_NAME:
            raise RequestError(
                f"The names of namespace and tool have more than {MAX_FLAT_NAME} characters.",
                param=f"{where}.name",
                code="string_above_max_length",
            )
        specs.append(
            _function(inner, where, tool.name)
            if isinstance(inner, t.FunctionTool)
            else _custom(inner, where, tool.name)
        )
    return tuple(specs)


SPECS: Mapping[type[Any], Callable[[Any, str], tuple[t.ToolSpec, ...]]] = {
    t.FunctionTool: lambda tool, path: (_function(tool, path),),
    t.CustomTool: lambda tool, path: (_custom(tool, path),),
    t.NamespaceTool: _namespace,
}
"""How a model is told of a tool; a type that is not here is accepted without effect."""


def _echo(tool: t.AnyTool | t.UnknownTool) -> Any:
    if isinstance(tool, t.UnknownTool):
        return tool.raw
    if isinstance(tool, t.FunctionTool) and tool.strict is None:
        return replace(tool, strict=is_strict(tool.parameters))
    return tool


def _refuse_server_run(tool: t.AnyTool | t.UnknownTool, path: str) -> None:
    hosted = isinstance(tool, t.Shell) and (tool.environment or {}).get("type", "local") != "local"
    if type(tool) in t.SERVER_RUN or hosted:
        kind = msgspec.to_builtins(tool)["type"]
        raise RequestError(
            f"This server runs no {kind!r} tool. Offer a function instead, or remove the tool.",
            param=f"{path}.type",
            code="unsupported_value",
        )


def _refuse_duplicates(specs: Sequence[t.ToolSpec]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise RequestError(
                f"Two tools are called {spec.name!r}.", param="tools", code="invalid_value"
            )
        seen.add(spec.name)


def _allowed(value: Json, specs: Sequence[t.ToolSpec]) -> t.Choice:
    mode, entries = value.get("mode", "auto"), value.get("tools")
    if mode not in ("auto", "required"):
        raise _bad_choice(f"mode {mode!r} is none of 'auto', 'required'")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _bad_choice("'tools' must be a list of tools")
    names = frozenset(
        _named(entry, specs) for entry in entries if entry.get("type") in ("function", "custom")
    )
    if mode == "required" and not names:
        raise _bad_choice("'required' needs at least one allowed tool")
    return t.Choice(mode=mode, names=names)


def _named(value: Json, specs: Sequence[t.ToolSpec]) -> str:
    name, kind = value.get("name"), value.get("type")
    if not isinstance(name, str):
        raise _bad_choice(f"a tool of type {kind!r} needs a name")
    flat = flat_name(value.get("namespace"), name)
    if not any(spec.name == flat and spec.kind == kind for spec in specs):
        raise _bad_choice(f"there is no {kind} tool called {name!r} in 'tools'")
    return flat


def _bad_choice(why: str) -> RequestError:
    return RequestError(f"Invalid 'tool_choice': {why}.", param="tool_choice", code="invalid_value")
