"""A batch's states are a table, and each wrong line is an error that names what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.application.resources.batches.input_lines import (
    BYTE_ORDER_MARK as MARK,
)
from antiphon.application.resources.batches.input_lines import (
    InputLine,
    read_lines,
)
from antiphon.domain.batches.batch import (
    ENDED,
    TRANSITIONS,
    Batch,
    BatchStatus,
    Step,
    advance,
    may,
)
from antiphon.domain.batches.lines import (
    MAX_ERRORS,
    CheckLines,
    LineAnswer,
    answered_line,
    error_line,
    read_line,
)
from antiphon.domain.errors import BodyTooLarge, RequestError

Json = dict[str, Any]
NOW = 1_790_000_000
CHAT = "/v1/chat/completions"
VALUES = st.one_of(st.none(), st.booleans(), st.text(), st.floats(allow_nan=False), st.just({}))
JSON = st.dictionaries(st.sampled_from(["custom_id", "method", "url", "body", "x"]), VALUES)


def to_bytes(value: Json) -> bytes:
    return json.dumps(value).encode()


def a_batch(status: BatchStatus = "validating") -> Batch:
    return Batch(
        id="batch_1",
        endpoint=CHAT,
        input_file_id="file-1",
        status=status,
        created_at=NOW,
        expires_at=NOW + 86_400,
    )


def test_the_table_has_each_status_and_leads_to_known_ones() -> None:
    statuses = set(get_args(BatchStatus))
    assert set(TRANSITIONS) == statuses
    assert {after for steps in TRANSITIONS.values() for after in steps.values()} < statuses
    assert {step for steps in TRANSITIONS.values() for step in steps} == set(get_args(Step))


def test_what_has_ended_stays_so() -> None:
    for status in ENDED:
        assert set(TRANSITIONS[status].values()) <= {status}


@pytest.mark.parametrize(
    ("steps", "status", "times"),
    [
        (["begin"], "in_progress", ["in_progress_at"]),
        (
            ["begin", "finalize", "complete"],
            "completed",
            ["in_progress_at", "finalizing_at", "completed_at"],
        ),
        (
            ["begin", "finalize", "expire"],
            "expired",
            ["in_progress_at", "finalizing_at", "expired_at"],
        ),
        (["fail"], "failed", ["failed_at"]),
        (["cancel"], "cancelling", ["cancelling_at"]),
        (
            ["begin", "cancel", "complete"],
            "cancelled",
            ["in_progress_at", "cancelling_at", "cancelled_at"],
        ),
    ],
)
def test_each_status_has_its_time(steps: list[Step], status: str, times: list[str]) -> None:
    batch = a_batch()
    for step in steps:
        batch = advance(batch, step, NOW + 1.9)
    found = [name for name in batch.__struct_fields__ if name.endswith("_at")]
    told = [name for name in found if getattr(batch, name) == NOW + 1]
    assert (batch.status, sorted(told)) == (status, sorted(times))


def test_a_cancellation_can_be_repeated_and_keeps_its_time() -> None:
    once = advance(a_batch(), "cancel", NOW)
    assert advance(once, "cancel", NOW + 5) is once
    ended = advance(once, "complete", NOW + 9)
    assert advance(ended, "cancel", NOW + 10) is ended


@pytest.mark.parametrize("status", ["finalizing", "completed", "failed", "expired"])
def test_a_batch_that_is_done_cannot_be_cancelled(status: BatchStatus) -> None:
    with pytest.raises(RequestError, match=f"Cannot cancel a batch with the status '{status}'"):
        advance(a_batch(status), "cancel", NOW)


@given(st.lists(st.sampled_from(get_args(Step))))
def test_whatever_is_tried_a_batch_only_takes_the_steps_that_it_may(steps: list[Step]) -> None:
    batch = a_batch()
    for step in steps:
        if not may(batch, step):
            with pytest.raises(RequestError):
                advance(batch, step, NOW)
        else:
            batch = advance(batch, step, NOW)
    assert batch.has_ended == (batch.status in ENDED)


# --- lines ----------------------------------------------------------------------------------------


def a_line(**other: Any) -> Json:
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m"}}
    return {name: value for name, value in {**line, **other}.items() if value is not ...}


def errors_of(*lines: Json | bytes, **options: Any) -> list[tuple[str, int | None, str | None]]:
    check = CheckLines(CHAT, **options)
    for number, line in enumerate(lines, 1):
        check.add(number, line if isinstance(line, bytes) else json.dumps(line).encode())
    return [(each.code, each.line, each.param) for each in check.errors]


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"hello", "invalid_json_line", None),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None),
        (b"[" * 10_000, "invalid_type", None),
        (b"[]", "invalid_type", None),
        (a_line(custom_id=...), "missing_required_parameter", "custom_id"),
        (a_line(custom_id=1), "invalid_type", "custom_id"),
        (a_line(custom_id=""), "string_below_min_length", "custom_id"),
        (a_line(custom_id="a" * 513), "string_above_max_length", "custom_id"),
        (a_line(method=...), "missing_required_parameter", "method"),
        (a_line(method="GET"), "invalid_method", "method"),
        (a_line(url=...), "missing_required_parameter", "url"),
        (a_line(url="/v1/responses"), "invalid_url", "url"),
        (a_line(body=...), "missing_required_parameter", "body"),
        (a_line(body=[]), "invalid_type", "body"),
        (a_line(body=None), "invalid_type", "body"),
        (a_line(body={"stream": True}), "unsupported_value", "body.stream"),
        (a_line(body={"background": True}), "unsupported_value", "body.background"),
        (a_line(headers={}), "invalid_value", None),
    ],
)
def test_a_wrong_line_is_named(line: Any, code: str, param: str | None) -> None:
    right = a_line(custom_id="right")
    found = errors_of(right, line)
    assert [(each[0], each[1]) for each in found] == [(code, 2)]
    if param is not None:
        assert found[0][2] == param


def test_a_right_line_has_no_error() -> None:
    assert errors_of(a_line(), a_line(custom_id="b", body={"stream": False, "n": 1})) == []


def test_a_custom_id_is_used_once() -> None:
    lines = [a_line(), a_line(custom_id="b"), a_line()]
    assert errors_of(*lines) == [("duplicate_custom_id", 3, "custom_id")]


def test_a_file_has_a_request_and_not_too_many() -> None:
    assert errors_of() == [("empty_file", None, None)]
    lines = [a_line(custom_id=str(number)) for number in range(3)]
    assert errors_of(*lines, max_lines=3) == []
    assert errors_of(*lines, max_lines=2) == [("too_many_requests", None, None)]


def test_errors_are_listed_up_to_a_number() -> None:
    check = CheckLines(CHAT)
    for number in range(1, 1000):
        if check.is_over:
            break
        check.add(number, b"{")
    assert len(check.errors) == MAX_ERRORS


def test_results_have_the_shapes_of_the_official_api() -> None:
    answer = LineAnswer(status_code=200, request_id="req_1", body=b'{"id":"x"}')
    assert json.loads(answered_line("batch_req_1", "a", answer)) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "req_1", "body": {"id": "x"}},
        "error": None,
    }
    assert json.loads(error_line("batch_req_1", "a", "batch_expired", "Too late.")) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": None,
        "error": {"code": "batch_expired", "message": "Too late."},
    }


@given(st.one_of(st.binary(), st.text().map(str.encode), JSON.map(to_bytes)))
def test_whatever_a_line_is_it_is_right_or_an_error(line: bytes) -> None:
    check = CheckLines(CHAT)
    check.add(1, line)
    assert len(check.errors) <= 1
    if not check.errors:
        assert read_line(line).method == "POST"


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b" ", b"\xef\xbb\xbf", b"long" * 9])),
    st.integers(1, 40),
    st.integers(1, 7),
)
def test_lines_are_the_same_however_their_blocks_are_cut(
    pieces: list[bytes], max_bytes: int, size: int
) -> None:
    content = b"".join(pieces)

    async def blocks() -> AsyncGenerator[bytes]:
        for start in range(0, len(content), size):
            yield content[start : start + size]

    async def read() -> list[tuple[int, bytes | None]]:
        lines = read_lines(blocks(), max_bytes=max_bytes)
        return [(each.number, text_or_none(each)) async for each in lines]

    whole = enumerate(content.split(b"\n"), 1)
    expected = [
        (
            number,
            None if len(line) > max_bytes else line.removeprefix(MARK) if number == 1 else line,
        )
        for number, line in whole
    ]
    assert asyncio.run(read()) == [each for each in expected if each[1] is None or each[1].strip()]


def text_or_none(line: InputLine) -> bytes | None:
    try:
        return line.text
    except BodyTooLarge:
        return None
