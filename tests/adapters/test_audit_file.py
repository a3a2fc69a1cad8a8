"""The audit log as a file: nothing is lost at the end, and a full disk stops nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.adapters.audit_file import MAX_WAITING_BYTES, AuditFile
from antiphon.application.ports import ToolCallRecord
from antiphon.domain.errors import SettingsError

CALL = ToolCallRecord(
    tenant="default",
    key_id="key_1",
    response_id="resp_1",
    tool="mcp",
    server="calc",
    name="add",
    arguments_sha256=64 * "0",
    result="ok",
    seconds=0.5,
    output_bytes=17,
)


def make_log(path: Path) -> AuditFile:
    return AuditFile(path, now=lambda: 1_790_000_000.25)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_record_is_a_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = make_log(path)
    await log.start()
    log.record(CALL)
    await log.aclose()
    assert records(path) == [
        {
            "time": "2026-09-21T14:13:20.250+00:00",
            "tenant": "default",
            "key_id": "key_1",
            "response_id": "resp_1",
            "tool": "mcp",
            "server": "calc",
            "name": "add",
            "arguments_sha256": 64 * "0",
            "result": "ok",
            "seconds": 0.5,
            "output_bytes": 17,
        }
    ]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_closing_writes_all_that_waits_and_a_new_server_adds_to_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for round_number in range(2):
        log = make_log(path)
        await log.start()
        for number in range(5000):
            log.record(replace(CALL, name=f"{round_number}-{number}"))
        await log.aclose()
    expected = [f"{round_number}-{number}" for round_number in range(2) for number in range(5000)]
    assert [record["name"] for record in records(path)] == expected


async def test_a_file_that_is_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path, old_path = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    log = make_log(path)
    await log.start()
    log.record(replace(CALL, name="first"))
    async with asyncio.timeout(30):
        while not path.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    path.rename(old_path)
    log.record(replace(CALL, name="second"))
    await log.aclose()
    assert [record["name"] for record in records(old_path)] == ["first"]
    assert [record["name"] for record in records(path)] == ["second"]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
async def test_a_full_disk_is_logged_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log = make_log(Path("/dev/full"))
    await log.start()
    line_bytes = 300
    for _ in range(2 * MAX_WAITING_BYTES // line_bytes):
        log.record(CALL)
    async with asyncio.timeout(30):
        await log.aclose()
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert "cannot be written: No space left on device" in messages[0]
    assert any("were lost" in message for message in messages)
    assert len(messages) < 10


async def test_a_file_that_cannot_be_opened_is_reported_before_the_server_starts(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match=r"audit\.jsonl' cannot be written: No such file"):
        await make_log(tmp_path / "missing" / "audit.jsonl").start()
