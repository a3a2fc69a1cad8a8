"""Contract tests for a family of chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from os.path import commonprefix
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.constraint import constraint
from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.families.own import check_family, markers_of_family
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.chat_template.parsing.text_buffer import MarkerFinder
from antiphon.adapters.formats.chat_template.template import ChatTemplate, named_templates
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.application.ports import Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolChoice, ToolSpec

Call = tuple[str, dict[str, Any]]

WEATHER = ToolSpec(
    name="get_weather",
    description="Tells the weather.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "places": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
)
PATCH = ToolSpec(name="apply_patch", kind="custom", description="Changes a file.")
FIND = ToolSpec(name="crm__find", namespace="crm", original_name="find")
TOOLS = (WEATHER, PATCH, FIND)
STRICT = ToolSpec(
    name="get_weather",
    strict=True,
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)

CALLS: Mapping[str, Sequence[Call]] = {
    "one argument": [("get_weather", {"city": "Paris"})],
    "types": [("get_weather", {"city": "Oslo", "days": 3, "places": ["a", "b"]})],
    "a text like a number": [("get_weather", {"city": "8080", "days": 0})],
    "a text with quotes": [("get_weather", {"city": 'the "old" town\'s \\ side, {a: [1]}'})],
    "lines": [("get_weather", {"city": "first\n  second\n\nthird"})],
    "an empty text": [("get_weather", {"city": ""})],
    "letters": [("get_weather", {"city": "Zürich 東京 \U0001f5fc"})],
    "a custom tool": [("apply_patch", {"input": 'print("hello")\nx = 1 < 2'})],
    "no arguments": [("crm__find", {})],
    "two calls": [("get_weather", {"city": "Bonn"}), ("get_weather", {"city": "Ulm", "days": 2})],
    "three tools": [
        ("apply_patch", {"input": "a"}),
        ("crm__find", {}),
        ("get_weather", {"city": "Rom"}),
    ],
}
every_call = pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)


def read(
    family: Family, text: str, *, cuts: Iterable[int] = (), tools: Sequence[ToolSpec] = TOOLS
) -> list[d.Delta]:
    """Return the deltas of a turn that comes in pieces; neighbors of a kind are joined."""
    parser = ChatTemplateParser(
        family,
        WordTokenizer([*dict.fromkeys(markers_of_family(family)), "<unused>"]),
        turn=Turn(model="m", items=(), tools=tools),
    )
    deltas: list[d.Delta] = []
    for start, end in pairwise([0, *cuts, len(text)]):
        deltas += parser.feed(Step(text=text[start:end]))
    return join_texts([*deltas, *parser.end()])


def join_texts(deltas: Sequence[d.Delta]) -> list[d.Delta]:
    """Return the deltas with texts of a kind joined where they follow each other."""
    whole: list[d.Delta] = []
    for delta in deltas:
        before = whole[-1] if whole else None
        if hasattr(delta, "text") and type(before) is type(delta):
            whole[-1] = type(delta)(getattr(before, "text") + delta.text)  # noqa: B009
        else:
            whole.append(delta)
    return whole


def calls_of(deltas: Sequence[d.Delta]) -> list[Call]:
    """Return the calls; a custom tool's input is wrapped as a model wraps it."""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        match delta:
            case d.CallStart(name=name, namespace=namespace):
                calls.append((f"{namespace}__{name}" if namespace else name, ""))
            case d.ArgumentsDelta(text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
            case d.TextDelta(text) | d.ReasoningDelta(text):
                raise AssertionError(f"{text!r} is no part of a call")
    return [
        (name, {"input": text} if name == PATCH.name else json.loads(text)) for name, text in calls
    ]


def turns_of(family: Family) -> list[str]:
    """Return turns as models of the family write them, and some with broken markers."""
    thoughts = ["Let me think.".join(pair) for pair in family.thinks] or ["Let me think."]
    thought = thoughts[0]
    written = [write_calls(family.call_form, calls) for calls in CALLS.values() if family.call_form]
    whole = [
        "Hello, world.",
        *(f"{each}\n\nHello." for each in thoughts),
        *(f"{thought}\n\nI will look.\n{calls}" for calls in written),
        *(f"{calls} Then more." for calls in written),
    ]
    markers = dict.fromkeys(markers_of_family(family))
    return [*whole, *(f"a {marker} b {marker[:-1]} c" for marker in markers)]


def cut_off(turns: Sequence[str]) -> list[str]:
    """Return turns that ended too early, as where the tokens ran out."""
    return [text[: len(text) * 2 // 3] for text in turns]


class FamilyContract:
    """Subclass it where pytest collects tests.

    class TestMine(FamilyContract):
        @pytest.fixture
        def family(self):
            return MINE  # or read_family(Path("mine.toml"))
    """

    @pytest.fixture
    def family(self) -> Family:
        raise NotImplementedError("override the fixture `family`")

    def test_its_fields_fit_together(self, family: Family) -> None:
        check_family(family, name="family")

    @every_call
    def test_a_written_call_is_read_back(self, family: Family, calls: Sequence[Call]) -> None:
        if family.call_form is None:
            pytest.skip("the family writes no calls")
        text = write_calls(family.call_form, calls)
        assert calls_of(read(family, text)) == list(calls)

    def test_text_before_a_call_is_kept(self, family: Family) -> None:
        form = family.call_form
        if form is None or not form.trigger:
            pytest.skip("its calls do not start with a marker")
        calls = CALLS["one argument"]
        first, *rest = read(family, f"Let me look.\n{write_calls(form, calls)}")
        assert first == d.TextDelta("Let me look.")
        assert calls_of(rest) == calls

    def test_steps_make_no_difference(self, family: Family) -> None:
        turns = turns_of(family)
        for text in (*turns, *cut_off(turns)):
            assert read(family, text, cuts=range(1, len(text))) == read(family, text), text
        for text in turns:
            whole = read(family, text)
            for cut in range(1, len(text)):
                if not text[cut - 1 : cut + 1].isalpha():  # letter by letter is enough inside words
                    assert read(family, text, cuts=[cut]) == whole, (text, cut)

    def test_no_text_is_lost_where_no_tool_is_offered(self, family: Family) -> None:
        markers = markers_of_family(family)
        turns = turns_of(family)
        for text in (*turns, *cut_off(turns)):
            deltas = read(family, text, tools=())
            shown = "".join(getattr(delta, "text", "") for delta in deltas)
            for marker in sorted(markers, key=len, reverse=True):
                text, shown = text.replace(marker, ""), shown.replace(marker, "")
            text = text[: MarkerFinder(markers).find_cut(text, 0)]  # what is cut off is no text
            assert "".join(shown.split()) == "".join(text.split())


class FamilyTemplateContract:
    """As `FamilyContract`, with a chat template of the family's models."""

    @pytest.fixture
    def family(self) -> Family:
        raise NotImplementedError("override the fixture `family`")

    @pytest.fixture
    def template(self) -> str:
        raise NotImplementedError("override the fixture `template`: the source of a chat template")

    def test_a_call_that_the_template_writes_is_read_back(
        self, family: Family, template: str
    ) -> None:
        text = _call_in_template(ChatTemplate(named_templates(template), {}))
        assert calls_of(read(family, text)) == CALLS["types"]


class FamilyConstraintContract:
    """As `FamilyContract`, for the constraint. It needs xgrammar, which comes with vLLM."""

    @pytest.fixture
    def family(self) -> Family:
        raise NotImplementedError("override the fixture `family`")

    @every_call
    def test_only_what_the_family_writes_is_allowed(
        self, family: Family, calls: Sequence[Call]
    ) -> None:
        pytest.importorskip("xgrammar")
        if family.call_form is None:
            pytest.skip("the family writes no calls")
        turn = Turn(model="m", items=(), tools=TOOLS, choice=ToolChoice(mode="required"))
        bound = constraint(family, turn, inside_reasoning=False)
        assert bound
        assert accepts(bound.value, write_calls(family.call_form, calls))
        assert not accepts(bound.value, "Hello.")
        unknown = [("launch", arguments) for _, arguments in calls]
        assert not accepts(bound.value, write_calls(family.call_form, unknown))

    def test_a_strict_call_among_text_is_held_to_its_schema(self, family: Family) -> None:
        pytest.importorskip("xgrammar")
        form = family.call_form
        if form is None or not form.trigger:
            pytest.skip("its calls do not start with a marker")
        bound = constraint(
            family, Turn(model="m", items=(), tools=[STRICT]), inside_reasoning=False
        )
        assert bound
        call = write_calls(form, [(STRICT.name, {"city": "Bonn"})])
        for text in ("Hello.", call, f"Let me look. {call}"):
            assert accepts(bound.value, text), text
        wrong = write_calls(form, [(STRICT.name, {"town": "Bonn"})])
        assert not accepts(bound.value, f"Let me look. {wrong}")

    @pytest.mark.parametrize("arguments", [{}, {"count": 3}], ids=["none", "a number"])
    def test_no_whitespace_is_endless(self, family: Family, arguments: Json) -> None:
        pytest.importorskip("xgrammar")
        if family.call_form is None:
            pytest.skip("the family writes no calls")
        turn = Turn(
            model="m",
            items=(),
            tools=[_counter(arguments)],
            choice=ToolChoice(mode="required"),
            effort="none",
        )
        bound = constraint(family, turn, inside_reasoning=False)
        assert bound
        call = write_calls(family.call_form, [("count", arguments)])
        assert accepts(bound.value, call)
        for end in range(len(call) + 1):
            for blanks in (" " * ENDLESS, "\t" * ENDLESS, "\n" * ENDLESS):
                assert not accepts_beginning(bound.value, call[:end] + blanks), call[:end]


ENDLESS = 100
"""Blanks in a row: a model that has lost its way goes on like this to its last token."""


def _counter(arguments: Json) -> ToolSpec:
    properties = {name: {"type": "integer"} for name in arguments}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name="count", strict=True, parameters=schema)


END_TOKEN = 256


@cache
def _compiler() -> Any:
    """Return xgrammar's compiler, with a token for each byte."""
    import xgrammar

    letters = [bytes([byte]) for byte in range(END_TOKEN)]
    info = xgrammar.TokenizerInfo(
        [*letters, b"<end>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END_TOKEN]
    )
    return xgrammar.GrammarCompiler(info)


def accepts(tag: Json, text: str) -> bool:
    """Return whether xgrammar allows a whole turn."""
    matcher = _matcher(tag)
    return bool(matcher.accept_string(text) and matcher.accept_token(END_TOKEN))


def accepts_beginning(tag: Json, text: str) -> bool:
    """Return whether xgrammar allows the beginning of a turn."""
    return bool(_matcher(tag).accept_string(text))


def _matcher(tag: Json) -> Any:
    import xgrammar

    return xgrammar.GrammarMatcher(_compiler().compile_structural_tag(json.dumps(tag)))


def _call_in_template(template: ChatTemplate) -> str:
    """Return what the template writes for a turn with a call."""
    question: list[Json] = [{"role": "user", "content": "How is the weather?"}]
    name, arguments = CALLS["types"][0]
    function = {"name": name, "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    prompt = template.render(question, [], {})
    text = template.render([*question, answer], [], {"add_generation_prompt": False})
    return text.removeprefix(commonprefix([prompt, text]))  # noqa: RUF071 - of characters
