"""Arguments whose name a model damages: read if it is plain which is meant, and never made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.families.minimax import NAMESPACE as NS
from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec

Read = Callable[..., list[d.Delta]]
SEARCH = ToolSpec(
    name="search",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "options": {"type": "object"},
        },
    },
)
FORMS = {name: row.call_form for name, row in FAMILIES.items() if row.call_form}
PLAIN = [
    name
    for name, form in FORMS.items()
    if '"query":' not in write_calls(form, [("search", {"query": ""})])
]
"""The families that write the names of arguments without the quotes of JSON."""


def read_calls(read: Read, family: str, text: str) -> list[dict[str, Any]]:
    """Return the arguments of calls of `search`, however the text is cut; there is nothing else."""
    deltas = read(family, text, tools=(SEARCH,))
    assert read(family, text, tools=(SEARCH,), cuts=range(1, len(text))) == deltas
    kinds = (d.CallStart, d.ArgumentsDelta, d.ItemEnd)
    assert [type(delta) for delta in deltas] == list(kinds) * (len(deltas) // 3), deltas
    return [json.loads(delta.text) for delta in deltas if isinstance(delta, d.ArgumentsDelta)]


@pytest.mark.parametrize("family", PLAIN)
def test_a_call_whose_argument_has_no_name_is_text(read: Read, family: str) -> None:
    whole = write_calls(FORMS[family], [("search", {"query": "one two"})]).strip()
    text = whole.replace("query", 'que" ry')
    for cuts in ((), range(1, len(text))):
        assert read(family, text, tools=(SEARCH,), cuts=cuts) == [d.TextDelta(text.strip())]


ARGUMENTS = {"query": "one two", "limit": 3}
SECTION = f'{NS}<tool_call>\n{NS}<invoke name="search">'
WHOLE = f"{SECTION}{NS}<query>one two{NS}</query>{NS}<limit>3{NS}</limit>"
NEXT = WHOLE.removeprefix(f"{NS}<tool_call>\n")
LEFT_OPEN = WHOLE.removesuffix(f"{NS}</limit>")
K3 = write_calls(FORMS["kimi_k3"], [("search", ARGUMENTS)])
LFM2 = ("lfm2", "<|tool_call_start|>[search({})]<|tool_call_end|>")
OLMO3 = ("olmo3", "<function_calls>search({})</function_calls>")
LLAMA4 = ("pythonic", "[search({})]")

DAMAGED: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "no </invoke>": ("minimax_m3", f"{WHOLE}{NS}</tool_call>", [ARGUMENTS]),
    "no end of a section": ("minimax_m3", f"{WHOLE}{WHOLE}{NS}</invoke>", [ARGUMENTS] * 2),
    "another invoke": ("minimax_m3", f"{WHOLE}{NEXT}{NS}</invoke>", [ARGUMENTS] * 2),
    "no end but the section's": ("minimax_m3", f"{LEFT_OPEN}{NS}</tool_call>", [ARGUMENTS]),
    **{
        f"Kimi's {key}": ("kimi_k3", K3.replace('key="query"', key), [ARGUMENTS])
        for key in ('key"query"', "key=query", "key='query'", '"query"', 'key="query', 'key: query')
    },
    "Kimi's type": ("kimi_k3", K3.replace('type="string"', 'type"string"'), [ARGUMENTS]),
    **{
        f"{family}: {written}": (family, form.replace("{}", written), [expected])
        for family, form in (LFM2, OLMO3, LLAMA4)
        for written, expected in (
            ('query=one two", limit=3', ARGUMENTS),
            ('query="one two, limit=3', {"query": "one two, limit=3"}),
            ('query="one two", limit=3', ARGUMENTS),
            ('query="a", options={"b": "c}', {"query": "a", "options": '{"b": "c}'}),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize(("family", "text", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_call_has_its_own_arguments(
    read: Read, family: str, text: str, expected: list[dict[str, Any]]
) -> None:
    assert read_calls(read, family, text) == expected
