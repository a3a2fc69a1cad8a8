"""Records of the log: lines for people, and JSON. Both name the request and the response."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import copy_context
from typing import Any

import pytest

from antiphon.application.telemetry.log_context import log_as
from antiphon.entrypoints.process.log_format import (
    FIELDS,
    FORMATTERS,
    JsonLogFormatter,
    LogFormatter,
)


def record(message: str, *args: Any, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("antiphon.runs", logging.INFO, __file__, 1, message, args, None)
    if fields:
        setattr(made, FIELDS, fields)
    return made


def formatted(formatter: logging.Formatter, made: logging.LogRecord, **ids: str) -> str:
    def work() -> str:
        if ids:
            log_as(**{"request_id": "", **ids})
        return formatter.format(made)

    return copy_context().run(work)


def as_json(made: logging.LogRecord, **ids: str) -> dict[str, Any]:
    line = formatted(JsonLogFormatter(), made, **ids)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_for_people_ends_with_the_ids_that_it_lacks() -> None:
    made = record("resp_1 ends")
    line = formatted(LogFormatter(), made, request_id="req_1", response_id="resp_1")
    assert line.endswith("INFO antiphon.runs resp_1 ends [request=req_1]")
    assert formatted(LogFormatter(), record("hello")).endswith("antiphon.runs hello")


def test_a_line_of_json_has_all_that_is_known() -> None:
    line = as_json(record("took %d s", 3, seconds=3.5), request_id="req_1", response_id="resp_1")
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "antiphon.runs",
        "message": "took 3 s",
        "request_id": "req_1",
        "response_id": "resp_1",
        "seconds": 3.5,
    }


@pytest.mark.parametrize("text", ["grün", "\u2028", "half \ud83d"])
def test_a_line_of_json_is_ascii(text: str) -> None:
    line = formatted(JsonLogFormatter(), record("%s", text))
    assert line.isascii()
    assert json.loads(line)["message"] == text


def test_a_line_of_vllm_names_the_response_of_its_request() -> None:
    assert as_json(record("Added request resp_0aZ9_1."))["response_id"] == "resp_0aZ9"


@pytest.mark.parametrize(
    "text", ["a\nINFO forged", "a\r\n{}", "\x1b[2K", "\u2028", '"}\n{"level":"error"', "\ud800"]
)
def test_no_text_forges_a_record(text: str) -> None:
    assert as_json(record("%s", text), request_id=text)["level"]
    line = formatted(LogFormatter(), record("%s", text))
    assert not any(each.startswith("INFO") for each in line.splitlines())
    assert "\x1b" not in line


def test_one_of_several_workers_names_itself() -> None:
    made = record("hello")
    line = formatted(LogFormatter(2), made, request_id="req_1")
    assert line.endswith("antiphon.runs hello [worker=2 request=req_1]")
    assert json.loads(JsonLogFormatter(2).format(made))["worker"] == 2


def test_an_exception_is_a_field() -> None:
    try:
        int("no\nway")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert as_json(made)["exception"].endswith(r"'no\nway'")


def test_each_format_has_a_formatter() -> None:
    assert set(FORMATTERS) == {"text", "json"}
