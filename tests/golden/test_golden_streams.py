"""Golden streams: deltas in, the exact bytes of the stream out; one folder a case."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.domain import deltas as d
from antiphon.domain.content import AnyAnnotation
from antiphon.domain.responses.response import Failure, Response
from antiphon.domain.sequencer import Sequencer
from antiphon.entrypoints.http.wire import sse

STREAMS = Path(__file__).parent / "streams"
CASES = sorted(folder.name for folder in STREAMS.iterdir())


class Case(msgspec.Struct):
    deltas: list[dict[str, dict[str, Any]]]
    end: str


def delta(written: dict[str, dict[str, Any]]) -> d.Delta:
    [(name, fields)] = written.items()
    if name == "AnnotationDelta":
        return d.AnnotationDelta(msgspec.convert(fields["annotation"], AnyAnnotation))
    return msgspec.convert(fields, getattr(d, name))  # type: ignore[no-any-return]


def stream(case: Case) -> bytes:
    numbers = count(1)
    seq = Sequencer(
        Response(id="resp_1", created_at=1_790_000_000, model="m"),
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        now=lambda: 1_790_000_001.0,
    )
    events = [*seq.open(), *seq.start()]
    for written in case.deltas:
        events += seq.feed(delta(written))
    match case.end:
        case "complete":
            events += seq.complete()
        case "cut":
            events += seq.end_incomplete("max_output_tokens")
        case "fail":
            events += seq.fail(Failure(code="server_error", message="The engine stopped."))
        case "cancel":
            events += seq.cancel()
        case other:
            raise ValueError(f"{other!r} ends no stream")
    return sse.ClientEncoder().frames(events)


@pytest.mark.parametrize("name", CASES)
def test_the_stream_is_byte_for_byte_as_recorded(name: str, update_golden: bool) -> None:
    case = msgspec.json.decode((STREAMS / name / "deltas.json").read_bytes(), type=Case)
    golden = STREAMS / name / "stream.sse"
    written = stream(case)
    if update_golden:
        golden.write_bytes(written)
    assert written == golden.read_bytes()
