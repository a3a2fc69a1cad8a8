"""JSON calls between a family's own markers, where its models should write something else."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.formats.unmarked_calls.searches import Said, said, turn_of
from tests.formats.unmarked_calls.test_shapes import CALL, OSLO

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.parsing.family_markers import sort_markers
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.chat_template.scripted.family_markup import tokenizer_of
from antiphon.adapters.formats.unmarked_calls import with_unmarked_calls
from antiphon.adapters.formats.unmarked_calls.blocks import OPENINGS
from antiphon.application.ports import Step

PAYLOADS = {"object": CALL, "list": f"[{CALL}]"}


def wrapped(name: str, payload: str) -> Iterator[str]:
    """Yield the payload between each pair of the family's markers that may stand around JSON."""
    markers = sort_markers(FAMILIES[name])
    section = (next(iter(sorted(markers.section_openers)), ""), markers.section_end)
    for opening, region in markers.regions.items():
        if opening in OPENINGS.markers:
            end = region.tags.call_end if region.tags else region.end
            for before, after in (("", ""), section if section[0] else ("", "")):
                yield f"{before}{opening}\n{payload}\n{end}{after}"


def read(name: str, text: str, size: int) -> Said:
    family, turn = FAMILIES[name], turn_of()
    parser = with_unmarked_calls(ChatTemplateParser(family, tokenizer_of(family), turn=turn), turn)
    pieces = (text[at : at + size] for at in range(0, len(text), size))
    return said(
        [*(each for piece in pieces for each in parser.feed(Step(text=piece))), *parser.end()]
    )


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("name", FAMILIES)
def test_json_between_any_familys_markers_is_read(name: str, payload: str) -> None:
    for text in wrapped(name, payload):
        for size in (1, len(text)):
            calls = [(each[0], msgspec.json.decode(each[1])) for each in read(name, text, size)]
            assert calls == [(OSLO[0], msgspec.json.decode(OSLO[1]))], text
