"""A call inside reasoning that is closed after it, and repeated."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.domain import deltas as d

Read = Callable[..., list[d.Delta]]

THOUGHT = [d.ReasoningDelta("Hm."), d.ItemEnd()]
THINKERS = sorted(name for name, row in FAMILIES.items() if row.think and row.call_form)


def mistral(city: str, *, separator: str = " ") -> str:
    return f'[TOOL_CALLS]get_weather[ARGS]{{"city":{separator}"{city}"}}'


def called(city: str) -> list[d.Delta]:
    arguments = json.dumps({"city": city})
    return [d.CallStart("get_weather"), d.ArgumentsDelta(arguments), d.ItemEnd()]


def read_both_ways(read: Read, family: str, text: str, **turn: object) -> list[d.Delta]:
    deltas = read(family, text, **turn)
    assert read(family, text, cuts=range(1, len(text)), **turn) == deltas
    return deltas


BONN, ULM = mistral("Bonn"), mistral("Ulm")


@pytest.mark.parametrize(
    ("after", "calls"),
    [
        ("", ["Bonn"]),
        ("[/THINK]", ["Bonn"]),
        (f"[/THINK]{BONN}", ["Bonn"]),
        (f"[/THINK]{BONN}</s>", ["Bonn"]),
        (f"[/THINK]{mistral('Bonn', separator='')}", ["Bonn"]),
        (f"[/THINK]{ULM}", ["Bonn", "Ulm"]),
        (f"[/THINK]{BONN}{BONN}", ["Bonn", "Bonn"]),
        (f"[/THINK]{ULM}{BONN}", ["Bonn", "Ulm"]),
        (f"{ULM}[/THINK]{BONN}{ULM}", ["Bonn", "Ulm"]),
        (f"{BONN}[/THINK]{BONN}{BONN}", ["Bonn", "Bonn"]),
        (BONN, ["Bonn", "Bonn"]),
    ],
)
@pytest.mark.parametrize("opening", ["[THINK]", ""])
def test_a_call_is_repeated_after_reasoning_only_once(
    read: Read, opening: str, after: str, calls: list[str]
) -> None:
    text = f"{opening}Hm.{BONN}{after}"
    deltas = read_both_ways(read, "mistral", text, starts_in_reasoning=not opening)
    assert deltas == [*THOUGHT, *(delta for city in calls for delta in called(city))]


@pytest.mark.parametrize("family", THINKERS)
def test_every_family_that_reasons_may_repeat_a_call(read: Read, family: str) -> None:
    row = FAMILIES[family]
    assert row.call_form
    assert row.think
    call = write_calls(row.call_form, [("get_weather", {"city": "Bonn"})])
    if not row.call_form.trigger or row.call_form.begin.startswith(row.end_markers):
        return  # such a call must start a message
    text = f"{row.think[0]}{row.think_label}Hm.\n{call}\n{row.think[1]}\n{call}"
    assert read_both_ways(read, family, text) == [*THOUGHT, *called("Bonn")]


def test_text_around_a_repetition_is_kept(read: Read) -> None:
    text = f"[THINK]Hm.{BONN}[/THINK]I look.{BONN}Done."
    message = [d.TextDelta("I look."), d.ItemEnd(), d.TextDelta("Done.")]
    assert read_both_ways(read, "mistral", text) == [*THOUGHT, *called("Bonn"), *message]


def test_a_repetition_that_is_cut_is_a_call(read: Read) -> None:
    cut = [d.CallStart("get_weather"), d.ArgumentsDelta('{"city": "Bo')]
    text = f"[THINK]Hm.{BONN}[/THINK]{BONN[:-4]}"
    assert read_both_ways(read, "mistral", text) == [*THOUGHT, *called("Bonn"), *cut]


def test_calls_after_closed_reasoning_are_no_repetitions(read: Read) -> None:
    text = f"[THINK]Hm.[/THINK]{BONN}[/THINK]{BONN}"
    assert read_both_ways(read, "mistral", text) == [*THOUGHT, *called("Bonn"), *called("Bonn")]
