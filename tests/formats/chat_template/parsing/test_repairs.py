"""What a parser repairs has a name in the turn's record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.families.minimax import NAMESPACE as NS
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.application.ports import Step
from antiphon.domain.tools import ToolSpec
from antiphon.domain.vocabulary.repairs import REPAIRS, Repair

Build = Callable[..., ChatTemplateParser]
SEARCH = ToolSpec(
    name="search",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
    },
)
PATCH = ToolSpec(name="patch", kind="custom")
FORMS = {name: row.call_form for name, row in FAMILIES.items() if row.call_form}
CALLS = [("search", {"query": "one two", "limit": 3}), ("patch", {"input": "a 'b' c"})]


def repairs(parser_of: Build, family: str, text: str, **turn: object) -> set[str]:
    parser = parser_of(family, tools=(SEARCH, PATCH), **turn)
    parser.feed(Step(text=text))
    parser.end()
    return set(parser.repairs)


@pytest.mark.parametrize("family", FORMS)
def test_calls_as_the_family_writes_them_need_no_repair(parser_of: Build, family: str) -> None:
    text = "Well.\n" + write_calls(FORMS[family], CALLS)
    assert repairs(parser_of, family, text) == set()


QWEN = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
CODER = write_calls(FORMS["qwen3_coder"], CALLS[:1])
GLM = write_calls(FORMS["glm47"], CALLS[:1])
M3 = write_calls(FORMS["minimax_m3"], CALLS[:1])
M2 = write_calls(FORMS["minimax_m2"], CALLS[:1])
WRAPPED = (
    "<tool_call>\n<function=search>\n<parameter=arguments>\n"
    '{"query": "a"}\n</parameter>\n</function>\n</tool_call>'
)
PATCHED = QWEN.replace("search", "patch").replace('query": "a"', 'input": "a \'b\' c"')
K2 = write_calls(FORMS["kimi_k2"], CALLS[:1])
K3 = write_calls(FORMS["kimi_k3"], CALLS[:1])
GEMMA = write_calls(FORMS["gemma4"], CALLS[:1])

DAMAGED: list[tuple[Repair, str, str]] = [
    ("argument_name", "kimi_k3", K3.replace('key="query"', 'key"query"')),
    ("argument_name", "minimax_m2", M2.replace('name="query"', 'name"query"=')),
    ("argument_tag", "glm47", GLM.replace("<arg_key>limit", "limit")),
    ("argument_tag", "glm47", GLM.replace("<arg_key>limit", ", <arg_key>limit")),
    ("call_marker", "qwen3_coder", CODER.replace("<function=search>", "<function=search")),
    ("call_marker", "hermes", QWEN.replace("tool_call>", "tool_calls>")),
    ("dropped_call", "hermes", f"{QWEN}\n{QWEN}"),
    ("encoded_arguments", "hermes", QWEN.replace('{"query": "a"}', r'"{\"query\": \"a\"}"')),
    ("name_before_marker", "mistral", 'search[TOOL_CALLS]{"query": "a"}'),
    ("open_call", "hermes", QWEN.replace("}}", "}")),
    ("open_call", "minimax_m3", M3.replace(f"{NS}</invoke>\n", "")),
    ("open_call", "kimi_k3", K3.replace("<|close|>call<|sep|>", "")),
    ("open_value", "qwen3_coder", CODER.replace("\n</parameter>", "", 1)),
    ("open_value", "kimi_k3", K3.replace("<|close|>argument<|sep|>", "", 1)),
    ("quotes", "lfm2", '<|tool_call_start|>[search(query="a b)]<|tool_call_end|>'),
    ("quotes", "lfm2", '<|tool_call_start|>[search(query=a b")]<|tool_call_end|>'),
    ("quotes", "gemma4", GEMMA.replace('query:<|"|>', "query:")),
    ("quotes", "hermes", PATCHED.replace("'", '"')),
    ("surplus_bracket", "hermes", QWEN.replace("}}", "}}}")),
    ("tool_name", "hermes", QWEN.replace('"search"', '"functions.search:0"')),
    ("tool_name", "kimi_k2", K2.replace("functions.search:0", "call_0")),
    ("unread_call", "hermes", QWEN.replace('"search"', '"find"')),
    ("wrapped_arguments", "qwen3_coder", WRAPPED),
    ("wrapped_arguments", "lfm2", "<|tool_call_start|>[search({'limit': 3})]<|tool_call_end|>"),
]  # fmt: skip


@pytest.mark.parametrize(("repair", "family", "text"), DAMAGED)
def test_a_repair_has_a_name(parser_of: Build, repair: str, family: str, text: str) -> None:
    is_single = repair == "dropped_call"
    assert repairs(parser_of, family, text, parallel_tool_calls=not is_single) == {repair}


def test_a_call_in_open_reasoning_is_a_repair(parser_of: Build) -> None:
    found = repairs(parser_of, "hermes", f"<think>Hm. {QWEN}")
    assert found == {"call_in_reasoning"}


def test_the_guide_lists_every_repair() -> None:
    guide = (Path(__file__).parents[4] / "docs/guides/formats.md").read_text()
    rows = [f"| `{name}` | {text[0].upper()}{text[1:]}. |" for name, text in REPAIRS.items()]
    assert "\n".join(rows) in guide


def test_the_table_has_every_repair() -> None:
    tested = {repair for repair, _, _ in DAMAGED} | {"call_in_reasoning", "header"}
    assert tested == REPAIRS.keys()
