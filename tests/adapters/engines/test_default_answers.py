"""What is played without a script."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile_schemas import HARD, LONG, SCHEMAS

from antiphon.adapters.engines.scripted.default_answers import answer
from antiphon.adapters.engines.scripted.grammar_inputs import small_matches, smallest_input
from antiphon.adapters.engines.scripted.schema_instances import smallest_instance
from antiphon.adapters.engines.scripted.step_budget import StepBudget
from antiphon.application.ports import Constraint
from antiphon.domain.tools import ToolChoice, ToolSpec

MAX_WORK_S = 0.5
"""About 50 ms in truth; test machines differ."""

MAX_INSTANCE_CHARS = 2_500_000

HI = [("system", "s"), ("user", "Hi")]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER, NOW = ToolSpec(name="weather", parameters=CITY), ToolSpec(name="now")
NOTE = ToolSpec(name="note", kind="custom", grammar=("regex", "[0-9]{2}[a-z]"))
ECHO = {"say": "Echo: Hi"}


@pytest.mark.parametrize(
    ("tools", "choice", "part"),
    [
        ([], ToolChoice(), ECHO),
        ([WEATHER, NOW], ToolChoice(), {"call": "weather", "args": {"city": ""}}),
        ([WEATHER, NOW], ToolChoice(mode="none"), ECHO),
        (
            [WEATHER, NOW],
            ToolChoice(mode="required", names=frozenset({"now"})),
            {"call": "now", "args": {}},
        ),
        ([WEATHER], ToolChoice(names=frozenset({"gone"})), ECHO),
        ([NOTE], ToolChoice(), {"custom": "note", "input": "00a"}),
    ],
)
def test_the_first_tool_that_may_be_called_is_called(
    tools: list[ToolSpec], choice: ToolChoice, part: Any
) -> None:
    assert answer(HI, tools=tools, choice=choice) == part


def test_a_tool_is_called_once_for_each_user_message() -> None:
    called = [*HI, ("call", "now"), ("tool", "noon")]
    assert answer(called, tools=[NOW]) == ECHO
    assert answer([*called, ("user", "again")], tools=[NOW]) == {"call": "now", "args": {}}


def test_arguments_are_an_object_whatever_the_schema() -> None:
    assert answer(HI, tools=[ToolSpec(name="f", parameters={"type": "string"})]) == {
        "call": "f",
        "args": {},
    }


def test_a_schema_asked_for_is_satisfied() -> None:
    text_format = {"type": "json_schema", "name": "city", "schema": CITY}
    assert answer(HI, text_format=text_format) == {"say": '{"city":""}'}


def test_a_json_object_is_one() -> None:
    said = answer(HI, text_format={"type": "json_object"})["say"]
    assert isinstance(json.loads(said), dict)


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (Constraint(kind="choice", value=["yes", "no"]), "yes"),
        (Constraint(kind="regex", value="[0-9]{3}"), "000"),
        (Constraint(kind="json_schema", value=CITY), '{"city":""}'),
        (Constraint(kind="grammar", value='start: "a" | "bc"'), "a"),
        (Constraint(kind="structural_tag", value={}), "Echo: Hi"),
    ],
)
def test_a_constraint_is_met(constraint: Constraint, said: str) -> None:
    assert answer(HI, constraint=constraint) == {"say": said}


def test_an_echo_is_of_the_last_60_characters_of_the_last_user_message() -> None:
    text = "".join(chr(97 + n % 26) for n in range(100))
    messages = [("user", "first"), ("user", text), ("assistant", "no")]
    assert answer(messages) == {"say": "Echo: " + text[-60:]}
    assert answer([("system", "s")]) == {"say": "Echo: "}


# --- schemas --------------------------------------------------------------------------------------

LIST = {"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}}
NODE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"const": "leaf"}]},
            },
            "required": ["left", "right"],
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        (True, None),
        ({}, None),
        ({"type": "string"}, ""),
        ({"type": ["string", "null"]}, None),
        ({"type": "string", "minLength": 3}, "aaa"),
        ({"type": "string", "pattern": "^[A-Z]{2}$"}, "AA"),
        ({"type": "string", "pattern": "^x+$", "minLength": 4}, "xxxx"),
        ({"type": "string", "format": "date"}, "2000-01-01"),
        ({"enum": ["b", "a"]}, "b"),
        ({"enum": ["b", 1], "type": "integer"}, 1),
        ({"const": {"k": [1]}}, {"k": [1]}),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "minimum": 3, "multipleOf": 5}, 5),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "number", "minimum": 0.25, "multipleOf": 0.5}, 0.5),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 2, "uniqueItems": True},
            [0, 1],
        ),
        ({"type": "array", "prefixItems": [{"const": 1}], "minItems": 2}, [1, None]),
        ({"type": "array", "contains": {"const": 7}}, [7]),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, {}),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, {"a": None}),
        ({"type": "object", "required": ["x"], "additionalProperties": {"const": 1}}, {"x": 1}),
        ({"anyOf": [{"type": "object"}, {"type": "boolean"}]}, False),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 0.5),
        ({"allOf": [{"type": "integer", "minimum": 2}, {"multipleOf": 3}]}, 3),
        ({"type": "integer", "not": {"enum": [0, 1]}}, -1),
        (LIST, {}),
        (NODE, {"left": None, "right": "leaf"}),
        ({"$ref": "#/$defs/none"}, None),
        ({"$defs": {"s": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/s"}] * 2}, ""),
    ],
)
def test_the_smallest_instance(schema: Any, instance: Any) -> None:
    found = smallest_instance(schema)
    assert (found, type(found)) == (instance, type(instance))


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"$ref": "#"},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "string", "pattern": "("},
        {"type": "string", "minLength": 10**12},
        {"type": "array", "items": {}, "minItems": 10**12},
        {"type": "object", "minProperties": 10**12},
        {"type": "object", "required": ["me"], "properties": {"me": {"$ref": "#"}}},
        {"properties": 3},
        {"type": "integer", "multipleOf": "two"},
        {
            "type": "object",
            "required": ["a"] * 50,
            "properties": {"a": {"anyOf": [{"allOf": [False]}] * 50}},
        },
    ],
)
def test_a_schema_without_an_instance_gives_an_empty_object_soon(schema: Any) -> None:
    assert smallest_instance(schema) == {}


def test_a_deep_schema_does_not_exhaust_the_stack() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema, "minItems": 1}
    assert smallest_instance(schema) == {}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_no_schema_takes_long(schema: Any) -> None:
    started = time.process_time()
    instance = smallest_instance(schema)
    assert time.process_time() - started < MAX_WORK_S
    assert len(json.dumps(instance)) < MAX_INSTANCE_CHARS


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({"enum": ["a1", "b2"], "pattern": "^b"}, "b2"),
        ({"enum": ["a1", "b2"], "pattern": r"(?=b)"}, "a1"),  # not regular, so not looked at
        ({"const": LONG, "pattern": HARD}, {}),
        (
            {
                "type": "object",
                "required": ["x_a", "y"],
                "patternProperties": {"^x_": {"type": "boolean"}},
                "additionalProperties": {"type": "integer"},
            },
            {"x_a": False, "y": 0},
        ),
    ],
)
def test_patterns_are_minded(schema: Any, instance: Any) -> None:
    assert smallest_instance(schema) == instance


bounds = st.integers(-9, 9)
scalars = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda n, k: {"type": "integer", "minimum": n, "multipleOf": k}, bounds, st.integers(1, 7)
    ),
    st.builds(lambda n: {"type": "integer", "exclusiveMaximum": n}, bounds),
    st.builds(
        lambda n: {"type": "number", "exclusiveMinimum": n, "exclusiveMaximum": n + 1}, bounds
    ),
    st.builds(lambda n: {"type": "string", "minLength": n, "maxLength": n + 2}, st.integers(0, 5)),
    st.builds(lambda n: {"type": "string", "pattern": f"^[b-d]{{{n}}}\\d?-"}, st.integers(0, 3)),
    st.lists(st.sampled_from(["a", 1, None, True, 1.5, "b"]), min_size=1).map(
        lambda v: {"enum": v}
    ),
    st.sampled_from(["x", 0, False, None, [1], {"k": 1}]).map(lambda v: {"const": v}),
    st.just({"$ref": "#/$defs/tree"}),
)


def grown(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.dictionaries(st.sampled_from("pqrs"), schemas, min_size=1, max_size=3)
    return st.one_of(
        st.builds(
            lambda inner, n: {"type": "array", "items": inner, "minItems": n},
            schemas,
            st.integers(0, 3),
        ),
        st.builds(
            lambda properties, n: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:n],
                "additionalProperties": False,
            },
            names,
            st.integers(0, 3),
        ),
        st.lists(schemas, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        schemas.map(lambda one: {"allOf": [one, {}]}),
        schemas.map(lambda one: {"anyOf": [one, {"type": "null"}], "description": "d"}),
    )


TREE = {
    "type": "object",
    "properties": {
        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
        "up": {"type": "null"},
    },
    "required": ["kids"],
}


@settings(deadline=None)
@given(st.recursive(scalars, grown, max_leaves=8))
def test_the_smallest_instance_is_one(schema: dict[str, Any]) -> None:
    schema = {**schema, "$defs": {"tree": TREE}}
    jsonschema.Draft202012Validator(schema).validate(smallest_instance(schema))


# --- expressions and grammars ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{4}-\d{2}-\d{2}$",
        r"[^a-z\s]+",
        r"(?:cat|dog)s?",
        r"(a|b)c\1",
        r"^.{3,5}$",
        r"\w+@\w+\.[a-z]{2,}",
        r"[^a0A]",
        r"(?=x)x",
        r"[é-ü]",
        "",
    ],
)
def test_a_match_of_a_pattern_matches(pattern: str) -> None:
    (text,) = small_matches(pattern, (0,), StepBudget())
    assert re.search(pattern, text)


@pytest.mark.parametrize("pattern", ["(", "(?<n>a)", "a{99999}{99999}", "(a|b)" * 2001])
def test_a_pattern_that_is_beyond_us_has_no_match(pattern: str) -> None:
    assert list(small_matches(pattern, (0,), StepBudget())) == []


PATCH = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""

SUM = """
// a sum
?start: sum
sum: product
   | sum "+" product   // recursive
product: NUMBER ("*" NUMBER)~2 [SIGN]
SIGN: "-"
%import common.NUMBER
%ignore " "
"""


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        (PATCH, "*** Begin Patch\n*** Add File: a\n+\n*** End Patch"),
        (SUM, "0*0*0"),
        ('start: "a".."f" x\nx: "é" | /[0-9]/', "aé"),
        ("start: start", "x"),
        ("no grammar at all", "x"),
        ("", "x"),
    ],
)
def test_a_lark_grammar_is_met_as_far_as_it_is_understood(definition: str, text: str) -> None:
    assert smallest_input(("lark", definition)) == text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("((a*)*)*a{12}[^a](?=)", "a" * 12 + "0"),
        ("(?=(a*){30}a{15}[^a])a{15}0", "a" * 15 + "0"),
        ("((?!b){9999}){9999}", ""),
        ("a{90000}(?=b)", "a" * 90_000),
        ("(a{0,9}){0,99999999}" * 100 + "a{99999}(?=)", "a" * 99_999),
        ("(?=)" + "(a*)*" * 40_000, "x"),
        (r"(a{99999})\1\1\1", "x"),
        ("|".join(f"(a{{99999}}{number})" for number in range(500)), "x"),
        ("[^" + "".join(map(chr, range(0x4E00, 0x7400))) + "](?=)", "x"),
    ],
)
def test_no_pattern_makes_the_writing_of_a_text_long(pattern: str, text: str) -> None:
    started = time.process_time()
    assert smallest_input(("regex", pattern)) == text
    assert time.process_time() - started < MAX_WORK_S
