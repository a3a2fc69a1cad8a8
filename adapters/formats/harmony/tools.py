"""The tool sections of prompts, and the names by which the model calls tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from sys import getsizeof
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from antiphon.adapters.formats.harmony.container_exec import (
    EXEC_DESCRIPTION,
    EXEC_PARAMETERS,
    NAMESPACE_DESCRIPTION,
)
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.adapters.formats.harmony.function_writer import (
    SECTION_END,
    SECTION_START,
    FunctionWriter,
)
from antiphon.adapters.formats.tools import (
    RECIPIENTS,
    ToolNames,
    callable_tools,
    description_of,
    input_parameters,
)
from antiphon.application.ports import Turn
from antiphon.application.support.lru_cache import LruCache, digest_of
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.tools import CONTAINER, PYTHON, ToolSpec

if TYPE_CHECKING:
    from openai_harmony import ToolNamespaceConfig  # type: ignore[import-untyped]


FUNCTIONS = "functions."
HOSTED_NAMESPACES = ("browser", "python", "container")
"""The namespaces of Harmony's own tools, beside that of functions."""

NOT_TOOLS = frozenset({"assistant", "user", "all"})
"""Recipients that are not tools, unless a function has this very name."""

MAX_SCHEMA_NODES = 10_000
"""For all tools together: each `$ref` is expanded in place, so a small schema can grow large."""

MAX_CACHED_SECTION_BYTES = 4 * 1024 * 1024

MIN_THREADED_BYTES = 16 * 1024
"""The definitions of some 50 tools, which take about 10 ms to write."""


def recipient_of(name: str) -> str:
    """Return the recipient of a call of the tool `name`.

    >>> recipient_of("find"), recipient_of("browser.search")
    ('functions.find', 'browser.search')
    """
    return name if name.partition(".")[0] in HOSTED_NAMESPACES else FUNCTIONS + name


def is_hosted(tool: ToolSpec) -> bool:
    """Whether the tool is one of Harmony's own, which the system message describes."""
    # If a client has a function called `python`, ours has another name and is a function.
    return tool.kind in RECIPIENTS and (tool.kind != PYTHON or tool.name == PYTHON)


def name_of(tool: ToolSpec) -> str:
    """Return the tool's name as the model writes it in a call; see `recipient_of`."""
    return RECIPIENTS[tool.kind] if is_hosted(tool) else tool.name


def with_model_parameters(tool: ToolSpec) -> ToolSpec:
    """Return the tool with the parameters that the model knows."""
    return replace(tool, parameters=EXEC_PARAMETERS) if tool.kind == CONTAINER else tool


class Recipients:
    """The tools that the model may call, by the recipients of their calls."""

    def __init__(self, turn: Turn) -> None:
        self._tools = {
            name_of(tool) if is_hosted(tool) else FUNCTIONS + tool.name: tool
            for tool in callable_tools(turn).values()
        }
        functions = (tool for tool in turn.tools if not is_hosted(tool))
        self._names = ToolNames(functions, turn.choice)

    def find(self, recipient: str) -> ToolSpec | None:
        """Return the tool; models forget the namespace `functions` or add it to other tools."""
        names = (recipient, FUNCTIONS + recipient, recipient.removeprefix(FUNCTIONS))
        tool = next((self._tools[name] for name in names if name in self._tools), None)
        if tool is not None or recipient in NOT_TOOLS:
            return tool
        return self._names.find(recipient)


def _browser() -> ToolNamespaceConfig:
    from openai_harmony import ToolNamespaceConfig

    return ToolNamespaceConfig.browser()


def _python() -> ToolNamespaceConfig:
    from openai_harmony import ToolNamespaceConfig

    return ToolNamespaceConfig.python()


def _container() -> ToolNamespaceConfig:
    from openai_harmony import ToolDescription, ToolNamespaceConfig

    tools = [ToolDescription.new("exec", EXEC_DESCRIPTION, EXEC_PARAMETERS)]
    return ToolNamespaceConfig(name="container", description=NAMESPACE_DESCRIPTION, tools=tools)


NAMESPACES: Mapping[str, Callable[[], ToolNamespaceConfig]] = {
    "browser": _browser,
    "python": _python,
    "container": _container,
}
"""The descriptions of its own tools that gpt-oss was trained on, in the order of the prompt. The
tools of a namespace are offered together."""


class ToolSections:
    """Writes the tool sections of the developer and system messages, with a cache."""

    def __init__(self, encoding: Encoding) -> None:
        self._writer = FunctionWriter(encoding)
        self._encoding = encoding
        self._sections: LruCache[str] = LruCache(MAX_CACHED_SECTION_BYTES)
        self._hosted_sections: dict[tuple[str, ...], str] = {}

    async def functions_section(self, tools: Sequence[ToolSpec]) -> str:
        """Return the developer message's section. Raises: RequestError for tools it cannot hold."""
        encoded = _encode(tools)
        key = digest_of(encoded)
        section = self._sections.get(key)
        if section is None:
            work = partial(_write_functions, self._writer, tools)
            is_long = len(encoded) > MIN_THREADED_BYTES
            section = await compute_in_thread(work) if is_long else work()
            self._sections.put(key, section, getsizeof(section))
        return section

    def hosted_section(self, tools: Sequence[ToolSpec]) -> str:
        """Return the system message's section, "" if no tool is one of Harmony's own."""
        offered = {name_of(tool).partition(".")[0] for tool in tools if is_hosted(tool)}
        namespaces = tuple(name for name in NAMESPACES if name in offered)
        if namespaces not in self._hosted_sections:  # there are eight of them at most
            self._hosted_sections[namespaces] = self._write_hosted_section(namespaces)
        return self._hosted_sections[namespaces]

    def _write_hosted_section(self, namespaces: Sequence[str]) -> str:
        if not namespaces:
            return ""
        from openai_harmony import DeveloperContent

        content = DeveloperContent.new()
        for namespace in namespaces:
            content = content.with_tools(NAMESPACES[namespace]())
        return self._encoding.text(self._encoding.render_tools(content))


def _encode(tools: Sequence[ToolSpec]) -> bytes:
    try:
        return msgspec.json.encode(tools)
    except RecursionError as error:
        raise _not_rendered(error) from error


def _not_rendered(error: Exception) -> RequestError:
    return RequestError(f"The tools cannot be rendered: {error}", param="tools")


def _write_functions(writer: FunctionWriter, tools: Sequence[ToolSpec]) -> str:
    node_budget = iter(range(MAX_SCHEMA_NODES))
    try:
        written = (
            writer.write(tool.name, description_of(tool), _parameters(tool, node_budget))
            for tool in tools
        )
        return f"{SECTION_START}{''.join(written)}{SECTION_END}"
    # From pydantic or the library, mostly for schemas that are nested too deeply.
    except (ValueError, RecursionError) as error:
        raise _not_rendered(error) from error


def _parameters(tool: ToolSpec, node_budget: Iterator[int]) -> Json | None:
    if tool.kind == "custom":
        return input_parameters()
    return None if tool.parameters is None else simplify_schema(tool.parameters, node_budget)


def simplify_schema(schema: Json, node_budget: Iterator[int]) -> Json:
    """Return the schema with only the keywords that the library's TypeScript writer knows.

    The writer knows neither `$ref` nor `anyOf` and writes `any` for both. It also drops the
    properties of `["object", "null"]`. Each node takes one from `node_budget`; once that is used
    up, references are no longer followed.

    >>> simplify_schema({"anyOf": [{"type": "string"}, {"type": "null"}]}, iter(range(99)))
    {'type': ['string', 'null']}
    """
    simple = _SchemaWriter(schema, node_budget).write(schema, ())
    if isinstance(simple.get("type"), list) and "properties" in simple:
        simple = {**simple, "type": "object"}
    return cast(Json, simple)


class _SchemaWriter:
    """Rewrites one schema. References that are recursive or beyond the budget become `{}`."""

    def __init__(self, root: Json, node_budget: Iterator[int]) -> None:
        self._root = root
        self._node_budget = node_budget

    def write(self, schema: Any, open_refs: tuple[str, ...]) -> Any:
        is_over_budget = next(self._node_budget, None) is None
        if isinstance(schema, list):
            return [self.write(each, open_refs) for each in schema]
        if not isinstance(schema, dict):
            return schema
        path = schema.get("$ref")
        if isinstance(path, str):
            if path in open_refs or is_over_budget:
                return {}
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            return self.write({**self._resolve(path), **siblings}, (*open_refs, path))
        simple = {
            key: self._write_value(key, value, open_refs)
            for key, value in schema.items()
            if key not in ("$defs", "definitions")
        }
        if "const" in simple:
            simple["enum"] = [simple.pop("const")]
        if isinstance(alternatives := simple.pop("anyOf", None), list):
            simple |= _merge_alternatives(alternatives)
        return simple

    def _write_value(self, key: str, value: Any, open_refs: tuple[str, ...]) -> Any:
        if key in _DATA_KEYS:
            return value
        if key == "properties" and isinstance(value, dict):
            return {name: self.write(each, open_refs) for name, each in value.items()}
        return self.write(value, open_refs)

    def _resolve(self, path: str) -> Json:
        target: Any = self._root
        for step in path.removeprefix("#").strip("/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        return target if isinstance(target, dict) else {}


# Their values are data, in which "$ref" and "anyOf" have no meaning.
_DATA_KEYS = frozenset({"default", "enum", "const", "examples", "required", "description"})


def _merge_alternatives(alternatives: list[Any]) -> Json:
    kinds = [
        each["type"]
        for each in alternatives
        if isinstance(each, dict)
        and isinstance(each.get("type"), str)
        and each.keys() <= {"type", "title"}
        and each["type"] not in ("object", "array")
    ]
    return {"type": kinds} if len(kinds) == len(alternatives) else {"oneOf": alternatives}
