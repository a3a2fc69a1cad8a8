"""A family of one's own: from a TOML file, or from a module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.argument_styles import ArgumentStyle, json_tag
from antiphon.adapters.formats.chat_template.families import CallForm, Family, Region
from antiphon.adapters.formats.chat_template.families.own import check_family, read_family
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
)
from antiphon.adapters.formats.chat_template.payloads import Calls
from antiphon.adapters.formats.chat_template.payloads.json_values import read_arguments
from antiphon.adapters.formats.ebnf import JSON_INPUT
from antiphon.domain.errors import SettingsError
from antiphon.testing.family import FamilyConstraintContract, FamilyContract, FamilyTemplateContract

TOML = """
models = "Mine 7B"
think = ["<thought>", "</thought>"]
end_markers = ["<eot>"]
hidden_markers = ["</act>"]

[calls."<act>"]
reader = "json"
end = "</act>"

[call_form]
begin = '<act>{"name": "{name}", "arguments": '
end = "}</act>"
trigger = "<act>"
"""
TEMPLATE = """
{%- for message in messages %}{{ '<' + message.role + '>' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<act>' + (call.function | tojson) + '</act>' }}
{%- endfor %}{{ '<eot>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}
"""


class FromToml:
    @pytest.fixture
    def family(self, tmp_path: Path) -> Family:
        file = tmp_path / "mine.toml"
        file.write_text(TOML, encoding="utf-8")
        return read_family(file)


class TestFromToml(FromToml, FamilyContract):
    pass


class TestWithTemplate(FromToml, FamilyTemplateContract):
    @pytest.fixture
    def template(self) -> str:
        return TEMPLATE


NAME_END = MarkerFinder(["!"])


def read_shouted_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `name!{…}`."""
    head = yield from buffer.read_up_to(NAME_END, 100)
    tool = calls.find_tool(head[0]) if head else None
    if tool is None:
        return False
    calls.start(tool)
    yield from read_arguments(buffer, calls, tool, region.end)
    if not buffer.at_end:
        calls.end()
    return True


MINE = Family(
    calls={"@call ": Region(reader=read_shouted_call, end="@@")},
    hidden_markers=("@@",),
    end_markers=("<eot>",),
    call_form=CallForm(
        begin="@call {name}!",
        end="@@",
        trigger="@call ",
        arguments=ArgumentStyle(json_tag, JSON_INPUT, json.dumps),
    ),
)


class TestFromModule(FamilyContract):
    @pytest.fixture
    def family(self) -> Family:
        return MINE


def test_a_module_may_bring_a_reader_and_a_style() -> None:
    assert check_family(MINE, name="my_package.formats:MINE") is MINE


def form(**changes: Any) -> CallForm:
    return replace(CallForm(begin="<c>{name}", end="</c>"), **changes)


FAULTS: list[tuple[object, str]] = [
    ("hermes", "is no Family but a str"),
    (Family(end_markers=("",)), "a marker is empty"),
    (Family(more_thinks=(("<a>", "</a>"),)), "`more_thinks` is set, but `think` is not"),
    (Family(calls={"<a><b>": Region(reader="json")}, end_markers=("<b>",)), "'<b>' stands inside"),
    (Family(calls={"<a>": Region(reader="yaml")}), "no reader 'yaml'; choose one of .*json"),
    (Family(calls={"<a>": Region(reader=1)}), "neither a name nor a function"),
    (Family(bare_calls={"[[": Region(reader="json")}), "not one character"),
    (Family(call_form=form(begin="<c>")), "does not contain {name}"),
    (Family(call_form=form(arguments="yaml")), "no style of arguments 'yaml'; choose one of"),
    (Family(call_form=form(trigger="<d>")), "does not start with `call_form.trigger`"),
]


@pytest.mark.parametrize(("family", "fault"), FAULTS, ids=[fault for _, fault in FAULTS])
def test_a_fault_is_named(family: object, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        check_family(family, name="mine")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("think = 3", r"Expected `array \| null`, got `int` - at `\$.think`"),
        ("thinks = ['a', 'b']", "unknown field `thinks`"),
        ("[calls.x]\nreeder = 'json'", "unknown field `reeder`|missing required field `reader`"),
        ("think = [", "mine.toml' is not valid"),
    ],
)
def test_a_file_with_a_mistake_names_the_field(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=fault):
        read_family(file)


def test_a_file_may_name_several_pairs_of_markers_of_reasoning(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('think = ["<a>", "</a>"]\nmore_thinks = [["<b>", "</b>"], ["<c>", "</c>"]]')
    family = read_family(file)
    assert family.thinks == (("<a>", "</a>"), ("<b>", "</b>"), ("<c>", "</c>"))
    assert [family.opens_reasoning(prompt) for prompt in ("x<a>\n", "<b>", "</b>")] == [
        True,
        True,
        False,
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="none.toml' cannot be read"):
        read_family(tmp_path / "none.toml")


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")  # torch emits warnings that we cannot fix
class TestItsConstraint(FromToml, FamilyConstraintContract):
    pass
