"""Patterns of schemas, as vLLM gets them and as llama.cpp does: xgrammar reads both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.engines.llama.grammar import gbnf_of
from antiphon.adapters.engines.vllm_names import structured_outputs
from antiphon.adapters.formats.chat_template.argument_styles import STYLES
from antiphon.adapters.formats.structural_tag import structural_tag_constraint
from antiphon.application.ports import Constraint
from antiphon.domain.errors import RequestError
from antiphon.domain.tools import ToolSpec

Accepts = Callable[[Constraint, str], dict[str, bool]]

PATTERNS = (
    *("b", "^b", "b$", "^b$", "^a|b$", "(a|b)c", "[ab]{2}", "^[^a\\n]+$", r"\d", r"^\w+$"),
    *("", r"^\S+$", "é", ".b", "^.{1,2}$", r"a\.b", "^(a|b)*$", "[A-Z][a-z]?"),
)
TEXTS = ("", "b", "ab", "bc", "abc", "a", "acb", "1", "a1", "é", "aé", "a b", "a.b", "\U0001f600b")
TAGS = {
    "json": '{"key": "{}"}',
    "qwen_xml": "<parameter=key>\n{}\n</parameter>",
    "glm_xml": "<arg_key>key</arg_key><arg_value>{}</arg_value>",
    "minimax_xml": '<parameter name="key">{}</parameter>',
    "deepseek_xml": (
        '<\uff5cDSML\uff5cparameter name="key" string="true">{}</\uff5cDSML\uff5cparameter>'
    ),
    "minicpm_xml": '<param name="key">{}</param>',
}


def constraint_of(style: str, schema: dict[str, Any]) -> Constraint:
    parameters = {
        "type": "object",
        "properties": {"key": schema},
        "required": ["key"],
        "additionalProperties": False,
    }
    tool = ToolSpec(name="tool", strict=True, parameters=parameters)
    return structural_tag_constraint(STYLES[style].tag(tool))


@pytest.fixture(scope="module")
def accepts() -> Accepts:
    xgrammar = pytest.importorskip("xgrammar")  # comes with vLLM, which is not everywhere
    letters = [bytes([byte]) for byte in range(256)]
    info = xgrammar.TokenizerInfo(
        [*letters, b"<end>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256]
    )
    compiler = xgrammar.GrammarCompiler(info)

    def run(constraint: Constraint, text: str) -> dict[str, bool]:
        tag = structured_outputs(constraint, field="tools")["structural_tag"]
        grammars = {
            "vllm": compiler.compile_structural_tag(tag),
            "llama": compiler.compile_grammar(gbnf_of(constraint, lambda _: None)),
        }
        found = {}
        for engine, grammar in grammars.items():
            matcher = xgrammar.GrammarMatcher(grammar)
            found[engine] = bool(matcher.accept_string(text) and matcher.accept_token(256))
        return found

    return run


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("style", TAGS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_found_anywhere_in_a_string(
    accepts: Accepts, style: str, pattern: str
) -> None:
    constraint = constraint_of(style, {"type": "string", "pattern": pattern})
    for text in TEXTS:
        expected = re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
        found = accepts(constraint, TAGS[style].replace("{}", text))
        assert found == {"vllm": expected, "llama": expected}, text


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("style", [each for each in TAGS if each != "json"])
def test_a_text_with_a_pattern_cannot_hold_its_closing_tag(accepts: Accepts, style: str) -> None:
    constraint = constraint_of(style, {"type": "string", "pattern": "b"})
    ending = TAGS[style].replace("{}", "a")
    assert not any(accepts(constraint, ending + TAGS[style].replace("{}", "b")).values())


@pytest.mark.parametrize("pattern", ['^"$', r"\\", "[\n]", "^\t$"])
def test_a_pattern_that_needs_an_escape_is_refused_for_vllm(pattern: str) -> None:
    schema = {"items": [{"pattern": pattern}]}
    for constraint in (
        Constraint(kind="json_schema", value=schema),
        constraint_of("qwen_xml", schema),
    ):
        with pytest.raises(RequestError, match="cannot enforce") as raised:
            structured_outputs(constraint, field="tools")
        assert raised.value.param == "tools"


@pytest.mark.parametrize("place", ["patternProperties", "items", "$defs", "anyOf", "allOf"])
def test_patterns_are_rewritten_at_every_place(place: str) -> None:
    one = {"pattern": "^b"}
    schema: dict[str, Any] = {
        "patternProperties": {"patternProperties": {"^b": True}},
        "items": {"items": one},
        "$defs": {"$defs": {"pattern": one}},
        "anyOf": {"anyOf": [True, one]},
        "allOf": {"properties": {"allOf": {"allOf": [one]}}},
    }[place]
    sent = structured_outputs(Constraint(kind="json_schema", value=schema), field="tools")
    expected = {"properties": {"allOf": one}} if place == "allOf" else schema
    assert json.loads(sent["json"]) == json.loads(json.dumps(expected).replace("^b", _B))


_B = "^b(?:[\\\\u0020-\\\\u0021\\\\u0023-\\\\u005b\\\\u005d-\\\\ud7ff\\\\ue000-\\\\u{10ffff}])*$"
