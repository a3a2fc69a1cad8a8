"""No text of a model takes its reader more than linear time, whatever it repeats.

Quick tests try a few repetitions for each family; slow ones try all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random

import pytest
from tests.formats.chat_template.conftest import tokenizer_of

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES, Family
from antiphon.adapters.formats.chat_template.families.own import markers_of_family
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.unmarked_calls import with_unmarked_calls
from antiphon.application.ports import Step, Turn
from antiphon.domain.tools import ToolSpec

SIZE = 6000
FACTOR = 4
MAX_RATIO = 7
"""Of the times for texts of SIZE * FACTOR and SIZE characters; quadratic time has 16."""

FLOOR_S = 0.02
"""A time below this is no trouble, and no measure."""

PIECE = 16
QUICK = 6

SEARCH = ToolSpec(
    name="search", parameters={"type": "object", "properties": {"query": {"type": "string"}}}
)
TURN = Turn(model="m", items=(), tools=(SEARCH,))

UNITS = (
    *(
        '"',
        "'",
        "\\",
        "{",
        "[",
        "(",
        "}",
        ")",
        "]",
        ",",
        " ",
        "\n",
        "<",
        "</",
        "<|",
        ": ",
        "a",
        "=",
    ),
    *('{"a":', '", "', '")', "call:", '{"name": "', '"a", b=', "<a>", "</a>", "&lt;", "```", ",a:"),
    *("```json\n", '{"name": "search", "arguments": {', "search(", "<tool_call>", "\n\n{"),
)


def starts_of(family: Family) -> Iterator[str]:
    """Yield what may be written before: nothing, or a call up to some place in it."""
    yield ""
    if family.call_form:
        call = write_calls(family.call_form, [("search", {"query": "one two"})])
        for place in ("one", "query", "search"):
            yield call.partition(place)[0] + ("search" if place == "search" else "")


def units_of(family: Family) -> list[str]:
    """Return the family's markers, whole and cut off, and others that any text may repeat."""
    form = family.call_form
    parts = (form.open + form.begin, form.begin, form.end, form.separator) if form else ()
    markers = [*markers_of_family(family), *(part.replace("{name}", "search") for part in parts)]
    cut = [marker[:-1] for marker in markers]
    return [unit for unit in dict.fromkeys([*UNITS, *markers, *cut]) if unit]


def seconds(family: Family, text: str, *tools: ToolSpec) -> float:
    """Return the time of this thread in which a text is read, in small pieces."""
    turn = Turn(model="m", items=(), tools=tools) if tools else TURN
    started = time.thread_time()
    parser = with_unmarked_calls(ChatTemplateParser(family, tokenizer_of(family), turn=turn), turn)
    for start in range(0, len(text), PIECE):
        parser.feed(Step(text=text[start : start + PIECE]))
    parser.end()
    return time.thread_time() - started


def is_linear(family: Family, start: str, unit: str) -> bool:
    count = max(SIZE // len(unit), 1)
    for _ in range(3):
        long = seconds(family, start + unit * (count * FACTOR))
        if long < FLOOR_S or long < MAX_RATIO * seconds(family, start + unit * count):
            return True
    return False


def texts_of(family: Family) -> list[tuple[str, str]]:
    return [(start, unit) for start in starts_of(family) for unit in units_of(family)]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_reader_takes_linear_time(name: str) -> None:
    family = FAMILIES[name]
    some = Random(name).sample(texts_of(family), QUICK)
    assert not [text for text in some if not is_linear(family, *text)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_reader_takes_linear_time_for_any_repetition(name: str) -> None:
    family = FAMILIES[name]
    assert not [text for text in texts_of(family) if not is_linear(family, *text)]


ALTERNATIVES = [{"properties": {f"k{n}": {"type": "integer"}}} for n in range(2000)]


@pytest.mark.parametrize("name", ["gemma4", "glm", "kimi_k3", "minimax_m3"])
def test_a_schema_is_read_once_for_all_calls_of_its_tool(name: str) -> None:
    """A client writes it, and decides how many calls a model makes."""
    family = FAMILIES[name]
    assert family.call_form is not None
    text = write_calls(family.call_form, [("f", {"k1": 1})] * 300)
    plain = ToolSpec(name="f", parameters={"properties": {"k1": {"type": "integer"}}})
    combined = ToolSpec(name="f", parameters={"oneOf": ALTERNATIVES})
    usual = max(seconds(family, text, plain), FLOOR_S)
    assert seconds(family, text, combined) < MAX_RATIO * usual


def test_a_call_without_a_name_costs_little_however_many_tools_there_are() -> None:
    item = {"anyOf": [*({"const": f"x{n}"} for n in range(60)), {"const": "q"}]}
    schema = {"properties": {"a": {"type": "array", "items": item}}}
    tools = [ToolSpec(name=f"f{n}", parameters=schema) for n in range(64)]
    start, middle, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    arguments = json.dumps({"a": ["q"] * 300})
    calls = "".join(f"{start}call_{n}{middle}{arguments}{end}" for n in range(10))
    text = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
    one = max(seconds(FAMILIES["kimi_k2"], text, tools[0]), FLOOR_S)
    assert seconds(FAMILIES["kimi_k2"], text, *tools) < MAX_RATIO * one
