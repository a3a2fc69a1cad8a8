"""Functions are written as the library writes them, but their texts never pass through it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_harmony import DeveloperContent, ToolDescription

from antiphon.adapters.formats.harmony.encoding import load_encoding
from antiphon.adapters.formats.harmony.function_writer import (
    MAX_FUNCTION_CHARS,
    MAX_VERBATIM_CHARS,
    SECTION_END,
    SECTION_START,
    FunctionWriter,
)
from antiphon.domain.errors import RequestError

LONG = MAX_VERBATIM_CHARS + 1
TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(min_size=LONG, max_size=LONG + 20),
    st.sampled_from(["a null " * 20, 'say "\\" \n' * 20, "two\r\nlines\n" * 10, "the same " * 9]),
)
SCALARS = st.sampled_from(["string", "number", "integer", "boolean", "null", "other"])
DEFAULTS = st.recursive(
    st.one_of(TEXTS, st.integers(), st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=3,
)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    common: dict[str, Any] = {
        "description": TEXTS,
        "title": TEXTS,
        "default": DEFAULTS,
        "examples": st.lists(TEXTS, max_size=2),
        "nullable": st.booleans(),
    }
    typed = st.fixed_dictionaries(
        {"type": st.one_of(SCALARS, st.lists(SCALARS, max_size=2))},
        optional={**common, "enum": st.lists(TEXTS, max_size=2)},
    )
    listed = st.fixed_dictionaries({"type": st.just("array")}, optional={**common, "items": inner})
    chosen = st.fixed_dictionaries({"oneOf": st.lists(inner, max_size=2)}, optional=common)
    grouped = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            **common,
            "properties": st.dictionaries(TEXTS, inner, max_size=3),
            "required": st.lists(TEXTS, max_size=2),
        },
    )
    return st.one_of(typed, listed, chosen, grouped)


SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": SCALARS}, optional={"description": TEXTS}),
    _schemas,
    max_leaves=6,
)
OBJECTS = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(TEXTS, SCHEMAS, max_size=3)}
)


def _written_by_the_library(tools: list[tuple[str, str, Any]]) -> str:
    content = DeveloperContent.new().with_function_tools(
        [ToolDescription.new(*tool) for tool in tools]
    )
    encoding = load_encoding()
    return encoding.text(encoding.render_tools(content))


@given(st.lists(st.tuples(st.just("f"), TEXTS, st.one_of(st.none(), OBJECTS)), min_size=1))
def test_a_section_is_the_one_that_the_library_writes(tools: list[tuple[str, str, Any]]) -> None:
    writer = FunctionWriter(load_encoding())
    written = "".join(writer.write(*tool) for tool in tools)
    assert f"{SECTION_START}{written}{SECTION_END}" == _written_by_the_library(tools)


def test_a_property_may_have_the_long_text_of_its_first_choice() -> None:
    text = "the same text " * 9
    choice = {"type": "string", "description": text}
    schema = {"type": "object", "properties": {"a": {"oneOf": [choice], "description": text}}}
    written = FunctionWriter(load_encoding()).write("f", "", schema)
    assert f"{SECTION_START}{written}{SECTION_END}" == _written_by_the_library([("f", "", schema)])


def test_parameters_that_would_hold_up_others_are_refused() -> None:
    properties = {f"property_{n}": {"type": "string"} for n in range(MAX_FUNCTION_CHARS // 20)}
    with pytest.raises(RequestError) as raised:
        FunctionWriter(load_encoding()).write("f", "", {"type": "object", "properties": properties})
    assert raised.value.code == "invalid_function_parameters"
    assert "'f'" in raised.value.message
