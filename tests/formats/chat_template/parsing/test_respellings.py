"""Names of tools, and markers around calls, as models misspell them: the call is still read."""

# ruff: noqa: E501, RUF001 - one case a line; DeepSeek's markers contain a full-width bar

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.parsing.family_markers import sort_markers
from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolChoice, ToolSpec

Read = Callable[..., list[d.Delta]]

TOOLS = tuple(
    ToolSpec(name=name, parameters={"type": "object", "properties": {"at": {"type": "string"}}})
    for name in ("bash", "get_time", "step2", "mcp__mail-box__list", "ops_find", "ops-find")
)


def read_both_ways(read: Read, family: str, text: str, **turn: Any) -> list[d.Delta]:
    deltas = read(family, text, **turn)
    assert read(family, text, cuts=range(1, len(text)), **turn) == deltas
    return deltas


def call_of(name: str, arguments: str = '{"at": "x"}') -> list[d.Delta]:
    return [d.CallStart(name), d.ArgumentsDelta(arguments), d.ItemEnd()]


def kimi(call_id: str) -> str:
    return f'<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{{"at": "x"}}<|tool_call_end|>'


def gemma(name: str) -> str:
    return f'<|tool_call>call:{name}{{at:<|"|>x<|"|>}}<tool_call|>'


def hermes(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"at": "x"}}}}\n</tool_call>'


def glm(name: str) -> str:
    return f"<tool_call>{name}<arg_key>at</arg_key><arg_value>x</arg_value></tool_call>"


def lfm2(name: str) -> str:
    return f'<|tool_call_start|>[{name}(at="x")]<|tool_call_end|>'


def qwen(name: str) -> str:
    return f"<tool_call>\n<function={name}>\n<parameter=at>\nx\n</parameter>\n</function>\n</tool_call>"


FORMS: Mapping[str, Callable[[str], str]] = {
    "kimi_k2": kimi, "gemma4": gemma, "hermes": hermes, "glm47": glm, "qwen3_coder": qwen,
}  # fmt: skip

NAMES = {
    "functionsbash5": "bash",
    "functions.bash5": "bash",
    "functions_get_time_1": "get_time",
    "functions:get_time:1": "get_time",
    "functions.step2": "step2",
    "functions_step2_3": "step2",
    "functionsstep21": "step2",
    "ns:bash": "bash",
    "default_api.get_time": "get_time",
    "mcp__mail_box__list": "mcp__mail-box__list",
}


@pytest.mark.parametrize(("written", "name"), NAMES.items())
@pytest.mark.parametrize("family", FORMS)
def test_a_name_in_another_spelling_is_that_of_the_only_tool_that_fits(
    read: Read, family: str, written: str, name: str
) -> None:
    assert read_both_ways(read, family, FORMS[family](written), tools=TOOLS) == call_of(name)


@pytest.mark.parametrize("call_id", ["bash5", "bash_0", "get_time:3", "get_time_1", "step2_0"])
def test_a_name_with_a_number_is_an_id_of_kimi(read: Read, call_id: str) -> None:
    name = next(tool.name for tool in TOOLS if call_id.startswith(tool.name))
    assert read_both_ways(read, "kimi_k2", kimi(call_id), tools=TOOLS) == call_of(name)


@pytest.mark.parametrize(
    "written", ["ns:nope", "functionsnope1", "ops.find", "functions.ops:find1", "bash5", "a bash"]
)
def test_a_name_that_fits_no_tool_or_several_is_no_call(read: Read, written: str) -> None:
    text = hermes(written)
    assert read_both_ways(read, "hermes", text, tools=TOOLS) == [d.TextDelta(text)]


def test_a_respelled_name_calls_no_tool_that_may_not_be_called(read: Read) -> None:
    choice = ToolChoice(names=frozenset({"get_time"}))
    text = hermes("ns:bash")
    assert read_both_ways(read, "hermes", text, tools=TOOLS, choice=choice) == [d.TextDelta(text)]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("kimi_k2", f"<|tool_call_section_begin|>{kimi('bash')}<|tool_call_section_end|>"),
        ("kimi_k2", f"<|tool_call_section_begin|>\n{kimi('bash')}\n<|tool_calls_section_end|>"),
        ("kimi_k2", kimi("bash").replace("call_begin", "calls_begin").replace("call_end", "calls_end")),
        ("gemma4", gemma("bash").replace("tool_call", "tool_calls")),
        ("glm47", f"<tool_calls>\n{glm('bash')}\n</tool_calls>"),
        ("glm47", glm("bash").replace("tool_call", "tool_calls")),
        ("hermes", f"<tool_calls>{hermes('bash')}</tool_calls>"),
        ("lfm2", lfm2("bash").replace("tool_call", "tool_calls")),
        ("qwen3_coder", f"<tool_calls>{qwen('bash')}</tool_calls>"),
    ],
)  # fmt: skip
def test_markers_in_the_other_number_are_markup(read: Read, family: str, text: str) -> None:
    assert read_both_ways(read, family, text, tools=TOOLS) == call_of("bash")


@pytest.mark.parametrize("family", [name for name, row in FAMILIES.items() if row.call_form])
def test_markers_in_the_other_number_are_text_without_a_call(read: Read, family: str) -> None:
    markers = sort_markers(FAMILIES[family])
    for marker in (*markers.respelled_openers, *markers.respelled_closers):
        text = f"Write {marker} here, then {marker}"
        assert read_both_ways(read, family, text, tools=TOOLS) == [d.TextDelta(text)]


@pytest.mark.parametrize("mark", ["｜｜DSML｜｜", "|DSML|"])
@pytest.mark.parametrize("family", ["deepseek_v32", "deepseek_v4", "deepseek_v41"])
def test_the_bars_of_deepseek_may_be_others(read: Read, family: str, mark: str) -> None:
    form = FAMILIES[family].call_form
    assert form
    calls = [("bash", {"at": "x"}), ("get_time", {})]
    text = re.sub("｜DSML｜", mark, write_calls(form, calls))
    deltas = read_both_ways(read, family, text, tools=TOOLS)
    assert [x.name for x in deltas if isinstance(x, d.CallStart)] == ["bash", "get_time"]
    arguments = [json.loads(x.text) for x in deltas if isinstance(x, d.ArgumentsDelta)]
    assert arguments == [{"at": "x"}, {}]
