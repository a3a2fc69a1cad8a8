"""Contract tests for the port `AuditLog`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import pytest

from antiphon.application.ports import AuditLog, ToolCallRecord

ReadRecords = Callable[[], Sequence[ToolCallRecord]]


def a_call(number: int = 1, **fields: Any) -> ToolCallRecord:
    defaults: dict[str, Any] = {
        "tenant": "us/../thëm\u2028",
        "key_id": "key_1",
        "response_id": f"resp_{number}",
        "tool": "mcp",
        "server": "lengths",
        "name": 'convert"\n\x00',
        "arguments_sha256": sha256(str(number).encode()).hexdigest(),
        "result": "ok",
        "seconds": 0.25,
        "output_bytes": 17,
    }
    return ToolCallRecord(**(defaults | fields))


@pytest.mark.asyncio
class AuditLogContract:
    """Subclass it where pytest collects tests.

    `read()` returns the records that a closed log has kept, oldest first.

    class TestMyAuditLog(AuditLogContract):
        @pytest.fixture
        def new_log(self, tmp_path):
            return MyAuditLog(tmp_path / "calls")

        @pytest.fixture
        def read(self, tmp_path):
            return lambda: my_records_in(tmp_path / "calls")
    """

    @pytest.fixture
    def new_log(self) -> AuditLog:
        raise NotImplementedError("override this fixture: return your audit log, not started")

    @pytest.fixture
    def read(self) -> ReadRecords:
        raise NotImplementedError("override this fixture: return a function that reads records")

    async def test_each_call_is_kept_as_it_was_recorded(
        self, new_log: AuditLog, read: ReadRecords
    ) -> None:
        results = ("ok", "error", "refused", "canceled", "approval_requested")
        calls = [a_call(number, result=result) for number, result in enumerate(results)]
        await new_log.start()
        for call in calls:
            new_log.record(call)
        await new_log.aclose()
        assert list(read()) == calls

    async def test_many_calls_are_kept_in_order(self, new_log: AuditLog, read: ReadRecords) -> None:
        calls = [a_call(number) for number in range(2000)]
        await new_log.start()
        for call in calls:
            new_log.record(call)
        await new_log.aclose()
        assert list(read()) == calls

    async def test_a_log_of_no_calls_can_be_closed(
        self, new_log: AuditLog, read: ReadRecords
    ) -> None:
        await new_log.start()
        await new_log.aclose()
        assert list(read()) == []
