"""One run, told in each dialect: byte for byte as recorded."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.responses.response import Failure, Response
from antiphon.domain.sequencer import Sequencer
from antiphon.entrypoints.http.wire.dialects import DIALECTS
from antiphon.entrypoints.http.wire.sse import ClientEncoder

FOLDER = Path(__file__).parent / "dialects"


def events() -> list[e.Event]:
    """Return a run with reasoning, an item that has no status of its own, and a failure."""
    numbers = count(1)
    seq = Sequencer(
        Response(id="resp_1", created_at=1_790_000_000, model="m"),
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        now=lambda: 1_790_000_001.0,
    )
    told = [*seq.open(), *seq.start()]
    for delta in (
        d.ReasoningDelta("Which tools are there? "),
        d.ReasoningDelta("Ask."),
        d.ToolStart("mcp_list_tools", {"server_label": "dw", "tools": ()}),
        d.ToolEnd("completed", {"tools": ({"name": "ask", "input_schema": {}},)}),
        d.TextDelta("There is"),
    ):
        told += seq.feed(delta)
    return [*told, *seq.fail(Failure(code="server_error", message="The engine stopped."))]


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_a_run_is_told_byte_for_byte_as_recorded(name: str, update_golden: bool) -> None:
    golden = FOLDER / f"{name}.sse"
    dialect = DIALECTS[name]
    written = ClientEncoder(dialect).frames(events()) + dialect.done
    if update_golden:
        golden.write_bytes(written)
    assert written == golden.read_bytes()
