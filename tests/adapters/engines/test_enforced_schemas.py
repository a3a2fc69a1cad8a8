"""What passes the check of a strict schema is enforced by each engine: the texts that it allows are
valid, as the package jsonschema says. What cannot be is refused with its keyword.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from antiphon.adapters.engines.llama.grammar import DoesNotMatch, gbnf_of
from antiphon.adapters.engines.llama.grammar.remaining import Reader
from antiphon.adapters.engines.llama.grammar.schemas import CannotExpress
from antiphon.adapters.engines.scripted.schema_instances import smallest_instance
from antiphon.adapters.engines.vllm_names import structured_outputs
from antiphon.adapters.formats.chat_template.argument_styles import STYLES
from antiphon.adapters.formats.structural_tag import structural_tag_constraint
from antiphon.application.ports import Constraint
from antiphon.domain.grammars.plain_schemas import plain_schema
from antiphon.domain.json_schema import find_schema_problem, loosen
from antiphon.domain.tools import ToolSpec

Json = dict[str, Any]


def closed(**properties: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def linked(value: str) -> Json:
    """Return a schema that refers to itself, of values that another one does not have."""
    item = {"$ref": f"#/$defs/{value}", "type": "object"}
    made = closed(name={"const": value}, next=item)
    return {**made, "required": ["name"]}


TEXT = {"type": "string"}
NAME = {"type": "string", "minLength": 2}
MANY = {"type": "array", "items": TEXT}
NEXT = {"$ref": "#/$defs/node", "type": "object"}
TERM = {
    "oneOf": [{"$ref": f"#/$defs/{name}"} for name in ("number", "minus", "half")],
    "discriminator": {"propertyName": "kind"},
}
NODE = closed(name=TEXT, next={"oneOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})

ENFORCED: dict[str, Json] = {
    "lengths": {"type": "string", "minLength": 2, "maxLength": 3},
    "lengths of a pattern": {"type": "string", "pattern": "^[a-c]+$", "minLength": 2},
    "a longest text": {"type": "string", "pattern": "^[A-Z][a-z]*$", "maxLength": 3},
    "lengths that follow": {"type": "string", "pattern": "^ab?c$", "minLength": 2, "maxLength": 9},
    "a format with lengths": {"type": "string", "format": "date", "maxLength": 3},
    "types": {"oneOf": [{"type": "integer"}, TEXT, {"type": "null"}]},
    "numbers": {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 9}]},
    "lengths that differ": {"oneOf": [{**TEXT, "maxLength": 1}, {**TEXT, "minLength": 3}]},
    "values": {"oneOf": [{"enum": ["a", 1]}, {"enum": ["b", True]}, {"const": None}]},
    "a discriminator": {
        "oneOf": [
            closed(kind={"const": "a"}, a=TEXT),
            closed(kind={"const": "b"}, a={"type": "integer"}),
            closed(kind={"enum": ["c", "d"]}),
        ]
    },
    "other properties": {"oneOf": [closed(a=TEXT), closed(b=TEXT)]},
    "oneOf and anyOf": {
        "oneOf": [{"type": "integer"}, {"type": "string"}],
        "anyOf": [{"minimum": 5}, {"minLength": 2}],
    },
    "bounds twice": {"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 3, "maximum": 4}]},
    "a property twice": {
        "allOf": [
            {"type": "object", "properties": {"a": NAME}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"maxLength": 2}, "b": TEXT}},
        ]
    },
    "a closed part": {
        "allOf": [closed(a=TEXT), {"type": "object", "properties": {"a": NAME, "b": TEXT}}]
    },
    "values of other parts": {"allOf": [{"enum": ["a", 1, 2, None]}, {"type": "integer"}]},
    "items twice": {"allOf": [{"type": "array", "items": TEXT}, {"items": NAME, "maxItems": 2}]},
    "options beside properties": {
        "type": "object",
        "properties": {"a": TEXT},
        "required": ["a"],
        "anyOf": [{"properties": {"a": {"const": "x"}}}, {"properties": {"a": {"minLength": 3}}}],
    },
    "keywords beside a reference": {
        "$defs": {"name": NAME},
        "$ref": "#/$defs/name",
        "maxLength": 3,
    },
    "what refers to itself": {"$defs": {"node": NODE}, **closed(root={"$ref": "#/$defs/node"})},
    "allOf of one reference": {"$defs": {"name": NAME}, "allOf": [{"$ref": "#/$defs/name"}]},
    "several repetitions": {"type": "string", "pattern": "^[a-c]+x?[a-z]*$", "maxLength": 4},
    "lengths of any pattern": {"type": "string", "pattern": "b", "minLength": 3},
    "a longer start": {"type": "string", "pattern": "^[a-c]*[A-Z]*$", "minLength": 2},
    "options that hold each other": {
        "$defs": {
            "number": closed(kind={"const": "number"}, of={"type": "integer"}),
            "minus": closed(kind={"const": "minus"}, of=TERM),
            "half": closed(kind={"const": "half"}, of=TERM),
        },
        **closed(root=TERM),
    },
    "a type beside each reference": {
        "$defs": {"node": closed(name=TEXT, next={"anyOf": [NEXT, {"type": "null"}]})},
        **closed(root=NEXT),
    },
    "several beside each other that refer to themselves": {
        "$defs": {each: linked(each) for each in ("a", "b")},
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "first": {"allOf": [closed(root={"$ref": "#/$defs/a", "type": "object"})]},
            "root": {"$ref": "#/$defs/b", "type": "object"},
            "a": {"$ref": "#/$defs/a", "type": "object"},
        },
        "required": ["first", "root"],
    },
    "two that refer to themselves": {
        "$defs": {
            "a": {"properties": {"next": {"$ref": "#/$defs/a"}, "name": TEXT}},
            "b": {"properties": {"next": {"$ref": "#/$defs/b"}, "name": {"maxLength": 2}}},
        },
        "type": "object",
        "additionalProperties": False,
        "properties": {"root": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}},
    },
}

REFUSED: dict[str, tuple[Json, str]] = {
    "other texts of several lengths": ({"pattern": "^(a|bc)+$", "minLength": 3}, "minLength"),
    "texts of several lengths": ({"pattern": "^(a|bc)+$", "maxLength": 3}, "maxLength"),
    "options that overlap": ({"oneOf": [TEXT, NAME]}, "oneOf"),
    "an integer is a number": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    "open objects": (
        {"oneOf": [{"type": "object", "required": [each]} for each in ("a", "b")]},
        "oneOf",
    ),
    "deep inside": ({"properties": {"a": {"items": {"oneOf": [TEXT, TEXT]}}}}, "oneOf"),
    "two patterns": ({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, "pattern"),
    "a multiple of fractions": (
        {"allOf": [{"multipleOf": 0.5}, {"multipleOf": 0.2}]},
        "multipleOf",
    ),
    "pattern properties": (
        {"allOf": [{"patternProperties": {"^a": TEXT}}, {"properties": {"ab": NAME}}]},
        "patternProperties",
    ),
    "nothing": ({"allOf": [TEXT, {"type": "integer"}]}, "allows no value"),
    "what fails while options are compared": (
        {
            "$defs": {"bad": {"pattern": "^(a|bc)+$", "minLength": 3}},
            "oneOf": [
                closed(a={"$ref": "#/$defs/bad"}, b={**MANY, "maxItems": 1}),
                closed(a={}, b={**MANY, "minItems": 2}),
            ],
        },
        "minLength",
    ),
    "itself": (
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, TEXT]}}, "$ref": "#/$defs/a"},
        "with itself",
    ),
    "many options": (
        {"allOf": [{"anyOf": [{"minimum": n} for n in range(9)]} for _ in range(9)]},
        "combines more than",
    ),
    "a bound of the wrong type": ({"allOf": [{"minimum": "x"}, {"minimum": 3}]}, "valid value"),
}

TAGS = {
    "qwen_xml": "<parameter=key>\n{}\n</parameter>",
    "glm_xml": "<arg_key>key</arg_key><arg_value>{}</arg_value>",
    "minimax_xml": '<parameter name="key">{}</parameter>',
}

LEAVES = [
    *("", "a", "b", "ab", "abc", "abab", "B", "Ab", "Abc", "Abcd", "x", "xyz", "2020-01-01"),
    *(0, 1, 2, 3, 4, 5, 8, 9, 1.5, -1, True, False, None),
]


def instances() -> list[Any]:
    """Return values of which each schema allows some, and not others."""
    objects: list[Any] = [{}, {"name": "n", "next": None}]
    for leaf in ("a", "ab", "abc", "x", 1, 1.5, None):
        objects += [{"a": leaf}, {"b": leaf}, {"a": leaf, "b": "b"}, {"a": leaf, "c": 1}]
        objects += [{"kind": kind, "a": leaf} for kind in ("a", "b", "c")]
    objects += [{"kind": kind} for kind in "abcd"]
    node = {"name": "n", "next": {"name": "m", "next": None}}
    objects += [{"root": node}, {"root": node["next"]}, {"root": {"name": "n"}}, {"root": None}]
    for first, second in ("ab", "aa", "ba"):
        objects.append({"first": {"root": {"name": first}}, "root": {"name": second}})
    lists = [[], ["a"], ["ab"], ["ab", "abc"], ["ab", "a"], ["ab", "ab", "ab"], [1]]
    return [*LEAVES, *objects, *lists]


def accepted_by_llama(schema: Json) -> Callable[[Any], bool]:
    grammar = gbnf_of(Constraint(kind="json_schema", value=schema), lambda _: None)

    def accepts(value: Any) -> bool:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        reader = Reader(grammar)
        try:
            reader.read([(1, text)])
        except DoesNotMatch:
            return False
        return reader.may_end

    return accepts


def accepted_by_vllm(schema: Json) -> Callable[[Any], bool]:
    """Return whether the schema that vLLM gets allows a value. xgrammar reads keyword by keyword:
    no schema may have what it would pass over beside others."""
    fields = structured_outputs(Constraint(kind="json_schema", value=schema), field="text")
    rewritten = json.loads(_UNICODE.sub(_character, fields["json"]))
    for each in schemas_in(rewritten):
        keywords = each.keys() - {"$defs"}
        assert keywords.isdisjoint({"allOf", "oneOf"})
        if "enum" in keywords or "const" in keywords:
            assert keywords <= {"type", "enum"} or keywords <= {"type", "const"}
        assert keywords.isdisjoint({"$ref", "anyOf"}) or len(keywords) == 1
        assert not ({"pattern", "format"} & keywords and {"minLength", "maxLength"} & keywords)
    return Draft202012Validator(rewritten).is_valid


_UNICODE = re.compile(r"\\\\u\{?([0-9a-fA-F]+)\}?")


def _character(escape: re.Match[str]) -> str:
    """Return the escape of a character in an expression of JavaScript's as one of Python's."""
    return rf"\\U{int(escape[1], 16):08x}"


def schemas_in(value: Any) -> list[Json]:
    found: list[Json] = []
    if isinstance(value, list):
        return [each for inner in value for each in schemas_in(inner)]
    if not isinstance(value, dict):
        return found
    if value.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}:
        found.append(value)
    return found + [each for inner in value.values() for each in schemas_in(inner)]


def accepted_by_the_scripted_engine(schema: Json) -> Callable[[Any], bool]:
    smallest = json.dumps(smallest_instance(plain_schema(schema)))
    return lambda value: json.dumps(value) == smallest


ENGINES: dict[str, Callable[[Json], Callable[[Any], bool]]] = {
    "llama": accepted_by_llama,
    "vllm": accepted_by_vllm,
    "scripted": accepted_by_the_scripted_engine,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ENFORCED)
def test_what_an_engine_allows_is_valid(engine: str, name: str) -> None:
    schema = ENFORCED[name]
    assert find_schema_problem(schema) is None
    is_valid = Draft202012Validator(schema).is_valid
    accepts = ENGINES[engine](schema)
    allowed = [
        value for value in [*instances(), smallest_instance(plain_schema(schema))] if accepts(value)
    ]
    assert allowed
    assert [value for value in allowed if not is_valid(value)] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused_with_its_keyword(name: str) -> None:
    schema, words = REFUSED[name]
    problem = find_schema_problem(schema)
    assert problem is not None
    assert words in problem
    assert problem.endswith("cannot be enforced")
    # Where it is not strict, the rest is enforced.
    assert find_schema_problem(schema, is_strict=False) is None
    assert find_schema_problem(loosen(schema)) is None


@pytest.mark.parametrize("style", ["qwen_xml", "glm_xml", "minimax_xml"])
@pytest.mark.parametrize(
    ("schema", "allowed"),
    [
        ({"minLength": 2, "maxLength": 3}, {"ab", "abc"}),
        ({"maxLength": 2}, {"", "a", "ab"}),
        ({"pattern": "^[a-c]+$", "minLength": 3}, {"abc", "abab"}),
        ({"allOf": [{"minLength": 2}, {"maxLength": 2}]}, {"ab"}),
    ],
)
def test_texts_between_tags_are_enforced_as_well(
    style: str, schema: Json, allowed: set[str]
) -> None:
    value = {"type": "string", **schema}
    tool = ToolSpec(name="tool", strict=True, parameters=closed(key=value))
    constraint = structural_tag_constraint(STYLES[style].tag(tool))
    begin, end = TAGS[style].split("{}")
    grammar = gbnf_of(constraint, lambda _: None)
    found = set()
    for text in ("", "a", "ab", "abc", "abab"):
        reader = Reader(grammar)
        try:
            reader.read([(1, f"{begin}{text}{end}")])
        except DoesNotMatch:
            continue
        found |= {text} if reader.may_end else set()
    assert found == allowed


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "object", ["string", "null"]]),
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(0, 3),
        "minimum": st.integers(0, 5),
        "maximum": st.integers(0, 5),
        "pattern": st.sampled_from(["^[a-c]+$", "^a", "b"]),
        "enum": st.lists(st.sampled_from(LEAVES), min_size=1, max_size=4),
        "const": st.sampled_from(LEAVES),
        "required": st.just(["a"]),
        "additionalProperties": st.just(False),
        "properties": st.fixed_dictionaries(
            {"a": st.sampled_from([TEXT, NAME, {"const": "x"}, {"type": "integer"}])},
            optional={"b": st.just(TEXT)},
        ),
    },
)
COMBINED = st.fixed_dictionaries(
    {},
    optional={key: st.lists(PARTS, min_size=1, max_size=3) for key in ("allOf", "anyOf", "oneOf")},
)


@given(own=PARTS, combined=COMBINED)
def test_any_combination_is_enforced_or_refused(own: Json, combined: Json) -> None:
    schema = {**own, **combined}
    if find_schema_problem(schema) is not None:
        return
    is_valid = Draft202012Validator(schema).is_valid
    for engine in (accepted_by_llama, accepted_by_vllm):
        try:
            accepts = engine(schema)
        except CannotExpress:
            continue
        wrong = [value for value in instances() if accepts(value) and not is_valid(value)]
        assert wrong == []
