"""What the model is told of its tools, and the names by which it calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from antiphon.adapters.formats.harmony.container_exec import ABOUT, ABOUT_EXEC, PARAMETERS
from antiphon.adapters.formats.harmony.encoding import Encoding, has_long_run
from antiphon.adapters.formats.tools import RECIPIENTS, description_of, input_parameters
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.tools import CONTAINER, PYTHON, ToolSpec

if TYPE_CHECKING:
    from openai_harmony import ToolNamespaceConfig  # type: ignore[import-untyped]


FUNCTIONS = "functions."
HOSTED = ("browser", "python", "container")
"""Harmony's own tools: their recipients stand outside the namespace of functions."""

MOST_SCHEMA_NODES = 10_000
"""Of all tools together; each `$ref` is written out where it stands, so few can become many."""

LONGEST_RUN_OF_TOOLS = 2000


def recipient_of(name: str) -> str:
    """Return whom a call of `name` is addressed to.

    >>> recipient_of("find"), recipient_of("browser.search")
    ('functions.find', 'browser.search')
    """
    return name if name.partition(".")[0] in HOSTED else FUNCTIONS + name


def is_hosted(tool: ToolSpec) -> bool:
    """Whether the tool is one of Harmony's own, which the system message tells of."""
    # A client may have a function called `python`: ours has another name then, and is a function.
    return tool.kind in RECIPIENTS and (tool.kind != PYTHON or tool.name == PYTHON)


def name_of(tool: ToolSpec) -> str:
    """Return the name of the tool in a call: see `recipient_of`."""
    return RECIPIENTS[tool.kind] if is_hosted(tool) else tool.name


def with_model_parameters(tool: ToolSpec) -> ToolSpec:
    """Return the tool with the arguments that the model is told of."""
    return replace(tool, parameters=PARAMETERS) if tool.kind == CONTAINER else tool


class Recipients:
    """The tools that the model may call, found by whom it addresses."""

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._tools = {
            name_of(tool) if is_hosted(tool) else FUNCTIONS + tool.name: tool for tool in tools
        }

    def find(self, recipient: str) -> ToolSpec | None:
        """Return the tool; models forget the namespace of functions, and give it to other tools."""
        names = (recipient, FUNCTIONS + recipient, recipient.removeprefix(FUNCTIONS))
        return next((self._tools[name] for name in names if name in self._tools), None)


def _browser() -> ToolNamespaceConfig:
    from openai_harmony import ToolNamespaceConfig

    return ToolNamespaceConfig.browser()


def _python() -> ToolNamespaceConfig:
    from openai_harmony import ToolNamespaceConfig

    return ToolNamespaceConfig.python()


def _container() -> ToolNamespaceConfig:
    from openai_harmony import ToolDescription, ToolNamespaceConfig

    tools = [ToolDescription.new("exec", ABOUT_EXEC, PARAMETERS)]
    return ToolNamespaceConfig(name="container", description=ABOUT, tools=tools)


NAMESPACES: Mapping[str, Callable[[], ToolNamespaceConfig]] = {
    "browser": _browser,
    "python": _python,
    "container": _container,
}
"""What gpt-oss was trained to be told of its own tools, in the order in which it is told. The
recipients of a namespace are offered together."""


class ToolSections:
    """Renders tools as the developer message's section, as TypeScript; remembers the latest."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._section = lru_cache(maxsize=32)(self._render)
        self._hosted = lru_cache(maxsize=32)(self._render_hosted)

    def tokens(self, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Raises: RequestError for tools that cannot be written."""
        try:
            return self._section(msgspec.json.encode(tools))
        # pydantic's or the library's own: nesting without end, mostly.
        except (ValueError, RecursionError) as error:
            raise RequestError(f"The tools cannot be rendered: {error}", param="tools") from error

    def hosted(self, tools: Sequence[ToolSpec]) -> str:
        """Return the system message's section; nothing where no tool is one of Harmony's own."""
        named = {name_of(tool).partition(".")[0] for tool in tools if is_hosted(tool)}
        return self._hosted(tuple(name for name in NAMESPACES if name in named))

    def _render_hosted(self, namespaces: Sequence[str]) -> str:
        if not namespaces:
            return ""
        from openai_harmony import DeveloperContent

        content = DeveloperContent.new()
        for namespace in namespaces:
            content = content.with_tools(NAMESPACES[namespace]())
        return self._encoding.text(self._encoding.render_tools(content))

    def _render(self, encoded: bytes) -> tuple[int, ...]:
        from openai_harmony import DeveloperContent, ToolDescription

        # The library encodes by itself, so the cut of long runs (encoding.py) cannot help here.
        if has_long_run(encoded.decode(), longest=LONGEST_RUN_OF_TOOLS):
            raise RequestError("A tool's definition holds an unbroken run of text.", param="tools")
        nodes = iter(range(MOST_SCHEMA_NODES))
        descriptions = [
            ToolDescription.new(tool.name, description_of(tool), _parameters(tool, nodes))
            for tool in msgspec.json.decode(encoded, type=list[ToolSpec])
        ]
        content = DeveloperContent.new().with_function_tools(descriptions)
        return tuple(self._encoding.render_tools(content))


def _parameters(tool: ToolSpec, nodes: Iterator[int]) -> Json | None:
    if tool.kind == "custom":
        return input_parameters()
    return None if tool.parameters is None else plain_schema(tool.parameters, nodes)


def plain_schema(schema: Json, nodes: Iterator[int]) -> Json:
    """Return the schema in the words that the library's TypeScript writer knows.

    Takes one of `nodes` for each that it writes; when they are used up it follows no more `$ref`.

    It knows neither `$ref` nor `anyOf` and writes `any` for both, and drops the properties of
    `["object", "null"]`.

    >>> plain_schema({"anyOf": [{"type": "string"}, {"type": "null"}]}, iter(range(99)))
    {'type': ['string', 'null']}
    """
    plain = _Plain(schema, nodes).write(schema, ())
    if isinstance(plain.get("type"), list) and "properties" in plain:
        plain = {**plain, "type": "object"}
    return cast(Json, plain)


class _Plain:
    """Rewrites one schema. A type that holds itself ends in `{}`, as does one beyond measure."""

    def __init__(self, root: Json, nodes: Iterator[int]) -> None:
        self._root = root
        self._nodes = nodes

    def write(self, schema: Any, followed: tuple[str, ...]) -> Any:
        is_beyond_measure = next(self._nodes, None) is None
        if isinstance(schema, list):
            return [self.write(each, followed) for each in schema]
        if not isinstance(schema, dict):
            return schema
        path = schema.get("$ref")
        if isinstance(path, str):
            if path in followed or is_beyond_measure:
                return {}
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            return self.write({**self._at(path), **siblings}, (*followed, path))
        plain = {
            key: self._value(key, value, followed)
            for key, value in schema.items()
            if key not in ("$defs", "definitions")
        }
        if "const" in plain:
            plain["enum"] = [plain.pop("const")]
        if isinstance(alternatives := plain.pop("anyOf", None), list):
            plain |= _one_of(alternatives)
        return plain

    def _value(self, key: str, value: Any, followed: tuple[str, ...]) -> Any:
        if key in _NOT_SCHEMAS:
            return value
        if key == "properties" and isinstance(value, dict):
            return {name: self.write(each, followed) for name, each in value.items()}
        return self.write(value, followed)

    def _at(self, path: str) -> Json:
        target: Any = self._root
        for step in path.removeprefix("#").strip("/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        return target if isinstance(target, dict) else {}


# Their values are data, in which "$ref" or "anyOf" would mean nothing.
_NOT_SCHEMAS = frozenset({"default", "enum", "const", "examples", "required", "description"})


def _one_of(alternatives: list[Any]) -> Json:
    kinds = [
        each["type"]
        for each in alternatives
        if isinstance(each, dict)
        and isinstance(each.get("type"), str)
        and each.keys() <= {"type", "title"}
        and each["type"] not in ("object", "array")
    ]
    return {"type": kinds} if len(kinds) == len(alternatives) else {"oneOf": alternatives}
