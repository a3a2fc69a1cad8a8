"""Turns of every family with faults in their markup: read without errors, and without losses.

ANTIPHON_TEST_MUTATIONS is the number of turns for each family. They are the same in every run.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count, pairwise
from random import Random
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES, Family
from antiphon.adapters.formats.chat_template.families.minimax import NAMESPACE
from antiphon.adapters.formats.chat_template.families.own import markers_of_family
from antiphon.adapters.formats.chat_template.payloads.json_values import parse_json
from antiphon.domain import deltas as d
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolSpec

Read = Callable[..., list[d.Delta]]

TURNS = int(os.environ.get("ANTIPHON_TEST_MUTATIONS", "25"))
MAX_MUTATIONS = 4

FORECAST = ToolSpec(
    name="forecast",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "places": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object"},
        },
        "required": ["city"],
    },
)
LAUNCH = ToolSpec(name="launch", parameters={"type": "object", "properties": {}})
PATCH = ToolSpec(name="patch", kind="custom")
TOOLS = (FORECAST, LAUNCH, PATCH)

WORD = re.compile("wörd[0-9]+ß")
"""A word that stands once in a turn, and whole: "ß" ends it."""

MARKUP: Mapping[str, Sequence[re.Pattern[str]]] = {
    # A property is named by its opening tag and again by its closing one.
    "minimax_m3": [re.compile(rf"{re.escape(NAMESPACE)}</{WORD.pattern}>")],
}
"""By family, where a word is part of the markup."""

NAME = re.compile(r"[\w.$-]+")
CALL_ID = re.compile(r'"(?:id|type|index|call_id|tool_call_id)"\s*:?\s*"[^"]*')
"""What identifies or describes a call in JSON. It is not used: the client gets ids of our own."""

PIECES = (
    *('"', "'", "{", "}", "[", "]", "(", ")", "<", ">", "/", "\\", "\n", " ", ",", ":", ";", "="),
    *("\\n", "\\u00", "\\ud83d", '\\"', '""', "''", "}}", "{{", "]]", "```", "```json\n", "&lt;"),
    *("null", "None", "true", "-1", "é", "😀", "\u2028", "\x00", "\ufffd", "\r\n", "\n\n"),
    *('{"function": ', '"parameters": ', '"tool_name": ', '"input": "', "<![CDATA[", "call:"),
    *('{"name": "forecast", "arguments": ', '"arguments": {', '"name": "launch"', '"id": ', "{}"),
    *("forecast", "launch", "patch", "nope", "input", "city", "days=", "item"),
)
FORMS = [row.call_form for row in FAMILIES.values() if row.call_form]
OTHER_MARKERS = sorted(set(chain.from_iterable(map(markers_of_family, FAMILIES.values()))))


class Writer:
    """Writes the turns of one family, with a new word in each place for a text."""

    def __init__(self, family: Family, random: Random) -> None:
        self._family = family
        self._random = random
        self._numbers = count()

    def turn(self) -> str:
        chance = self._random.random
        parts = [self._think() if chance() < 0.5 else "", self._text() if chance() < 0.6 else ""]
        if self._family.call_form:
            parts.append(write_calls(self._family.call_form, self.calls()))
        if chance() < 0.1:  # a model that was trained on the outputs of another
            form = self._random.choice(FORMS)
            parts.insert(self._random.randint(0, len(parts)), write_calls(form, self.calls()))
        parts.append(self._text() if chance() < 0.3 else "")
        parts.append(self._random.choice([*self._family.end_markers, ""]))
        return "".join(parts)

    def _word(self) -> str:
        return f"wörd{next(self._numbers)}ß"

    def _sentence(self) -> str:
        return f"The {self._word()} is\n{self._word()}, {self._word()}."

    def _think(self) -> str:
        if self._family.think is None:
            return ""
        begin, end = self._family.think
        begin = self._random.choice([begin + self._family.think_label, ""])
        return f"{begin}{self._sentence()}{end}\n\n"

    def _text(self) -> str:
        begin, end = self._family.text or ("", "")
        return f"{begin}{self._sentence()}{end}"

    def calls(self) -> list[tuple[str, Json]]:
        return [self._call() for _ in range(self._random.randint(1, 3))]

    def _call(self) -> tuple[str, Json]:
        name = self._random.choice(["forecast", "forecast", "forecast", "launch", "patch", "nope"])
        if name == "patch":
            return name, {"input": self._odd_text()}
        if name == "launch":
            return name, {}
        values = {
            "city": self._word(),
            "days": 3,
            "units": self._random.choice([None, self._word()]),
            "places": [self._word(), self._odd_text()],
            "options": {"a": {self._word(): self._word()}, "list": [1, {}, [self._word()]]},
            "other": self._odd_text(),
        }
        keys = self._random.sample(sorted(values), self._random.randint(1, len(values)))
        return name, {key: values[key] for key in keys}

    def _odd_text(self) -> str:
        odd = ("\n", '"', "'", " <b>", "\\", ", ", "{", "]", "", " 😀 ", ": ")
        return "".join(f"{self._word()}{self._random.choice(odd)}" for _ in range(3))


def mutated(text: str, family: Family, random: Random) -> str:
    """Return the text after a few mutations."""
    for _ in range(random.randint(1, MAX_MUTATIONS)):
        text = _mutate(text, family, random)
    return text


def _mutate(text: str, family: Family, random: Random) -> str:
    start, end = _span(text, family, random)
    match random.randrange(7):
        case 0:
            return text[:start] + text[end:]
        case 1 | 2:
            return text[:start] + random.choice(_pieces(family, random)) + text[start:]
        case 3:
            return text[:end] + text[start:]
        case 4:
            middle = min(2 * end - start, len(text))
            return text[:start] + text[end:middle] + text[start:end] + text[middle:]
        case 5:
            return f"{text[:start]} wörd{random.randint(100, 999)}ß {text[start:]}"
        case _:
            return text[: random.randint(len(text) // 4, len(text))]


def _pieces(family: Family, random: Random) -> Sequence[str]:
    form = family.call_form
    own = [form.open, form.begin, form.end, form.separator, form.close] if form else []
    own = [piece.replace("{name}", "forecast") for piece in own]
    return random.choice([PIECES, OTHER_MARKERS, [*markers_of_family(family), *own]])


def _span(text: str, family: Family, random: Random) -> tuple[int, int]:
    """Return where a few characters stand, or a marker."""
    marker = random.choice(_pieces(family, random))
    if marker and marker in text and random.random() < 0.8:
        start = random.choice([match.start() for match in re.finditer(re.escape(marker), text)])
        return start, start + len(marker)
    start = random.randint(0, len(text))
    return start, min(start + random.choice([1, 1, 2, 5, 20]), len(text))


def some_cuts(text: str, random: Random) -> Sequence[int]:
    if not text:
        return ()
    if random.random() < 0.2:
        return range(1, len(text))
    return sorted(random.sample(range(len(text)), min(random.randint(1, 30), len(text))))


def lost_words(family: str, text: str, deltas: Sequence[d.Delta]) -> Counter[str]:
    """Return the words that the text has more often than the deltas, except those of markup."""
    for markup in (CALL_ID, *MARKUP.get(family, ())):
        text = markup.sub("", text)
    return Counter(WORD.findall(text)) - words_of(deltas)


def made_up_keys(text: str, deltas: Sequence[d.Delta]) -> list[str]:
    """Return the arguments' names that are no names, and that the model did not write in quotes."""
    calls = [x for x in deltas if isinstance(x, d.CallStart | d.ArgumentsDelta)]
    keys: list[str] = []
    for start, arguments in pairwise(calls):
        if isinstance(start, d.CallStart) and isinstance(arguments, d.ArgumentsDelta):
            value = parse_json(arguments.text) if start.kind == "function" else None
            keys += value if isinstance(value, dict) else ()
    # Half a surrogate pair can only be written with an escape.
    return [
        key
        for key in keys
        if not NAME.fullmatch(key)
        and json.dumps(key, ensure_ascii=False) not in text
        and json.dumps(key) not in text
    ]


def words_of(deltas: Sequence[d.Delta]) -> Counter[str]:
    return Counter(WORD.findall("".join(_texts(deltas))))


def _texts(deltas: Sequence[d.Delta]) -> Iterator[str]:
    for delta in deltas:
        if isinstance(delta, d.CallStart):
            yield f" {delta.name} {delta.call_id} "
        yield getattr(delta, "text", "")


def cases(family: str) -> Iterator[tuple[str, dict[str, Any], Sequence[int]]]:
    for number in range(TURNS):
        random = Random(f"{family} {number}")
        row = FAMILIES[family]
        text = mutated(Writer(row, random).turn(), row, random)
        starts_in_reasoning = row.think is not None and random.random() < 0.3
        yield text, {"starts_in_reasoning": starts_in_reasoning}, some_cuts(text, random)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_with_faults_is_read_whole_and_however_it_is_cut(read: Read, family: str) -> None:
    for text, options, cuts in cases(family):
        deltas = read(family, text, tools=TOOLS, **options)
        assert read(family, text, cuts=cuts, tools=TOOLS, **options) == deltas, text
        assert not lost_words(family, text, deltas), text
        assert not made_up_keys(text, deltas), text


@pytest.mark.parametrize("family", [name for name, row in FAMILIES.items() if row.call_form])
def test_a_turn_without_faults_has_all_its_calls(read: Read, family: str) -> None:
    form = FAMILIES[family].call_form
    assert form
    offered = {tool.name for tool in TOOLS}
    for number in range(TURNS):
        calls = Writer(FAMILIES[family], Random(f"{family} {number}")).calls()
        calls = [call for call in calls if call[0] in offered]
        deltas = read(family, write_calls(form, calls), tools=TOOLS)
        names = [delta.name for delta in deltas if isinstance(delta, d.CallStart)]
        texts = [delta.text for delta in deltas if isinstance(delta, d.ArgumentsDelta)]
        assert names == [name for name, _ in calls]
        for (name, arguments), text in zip(calls, texts, strict=True):
            if name == PATCH.name:
                assert text == arguments["input"]
            else:
                assert json.loads(text).keys() == arguments.keys()
