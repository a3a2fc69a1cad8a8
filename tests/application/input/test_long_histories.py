"""A long history is read quickly, because agents send all of it with every turn."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from antiphon.domain.errors import RequestError
from antiphon.domain.history import conversation as c
from antiphon.domain.requests.decoding import decode_request
from antiphon.entrypoints.http.wire.bodies import BodyLimits, check_complexity

LIMIT_S = 0.25
"""CPU time. `python -m benchmarks.long_history` takes a fifth of it, on a faster machine."""

TEXT = 'A line of “code”, with a "quote" in it: {[(x)]}.\n' * 40


def turn(number: int) -> list[dict[str, Any]]:
    call_id = f"call_{number}"
    arguments = json.dumps({"text": TEXT}, ensure_ascii=False)
    call = {"type": "function_call", "call_id": call_id, "name": "run", "arguments": arguments}
    content = [{"type": "output_text", "text": TEXT, "annotations": []}]
    return [
        {"role": "user", "content": TEXT},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": TEXT}]},
        call,
        {"type": "function_call_output", "call_id": call_id, "output": TEXT},
        {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content},
    ]


def body(items: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "m", "input": items}, ensure_ascii=False).encode()


def test_two_thousand_items_of_five_megabytes_are_read_within_the_limit() -> None:
    history = body([item for number in range(400) for item in turn(number)])
    assert len(history) > 4_500_000
    durations = []
    for _ in range(3):
        started_at = time.thread_time()
        check_complexity(history, BodyLimits())
        entries = c.settle_ids([], c.entries(decode_request(history).request.input))
        items = [entry.item for entry in entries]
        c.check_call_output_pairs(items)
        c.items_for_model(items)
        resources = [c.to_resource(entry, lambda prefix: f"{prefix}_1") for entry in entries]
        durations.append(time.thread_time() - started_at)
        assert len(resources) == 2000
    assert min(durations) < LIMIT_S


def test_a_thousand_invalid_items_are_rejected_within_the_limit() -> None:
    invalid = body([{"type": f"bogus_{n}", "x": [n] * 50} for n in range(1000)])
    started_at = time.thread_time()
    with pytest.raises(RequestError) as caught:
        c.entries(decode_request(invalid).request.input)
    assert time.thread_time() - started_at < LIMIT_S
    assert len(caught.value.message) < 1000
