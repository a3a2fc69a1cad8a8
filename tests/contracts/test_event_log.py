"""Every event log passes the contract."""

from __future__ import annotations

import pytest

from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.application.ports import EventLog
from antiphon.testing.event_log import EventLogContract

LOGS = {"memory": MemoryEventLog}


class TestEventLog(EventLogContract):
    @pytest.fixture(params=LOGS)
    async def log(self, request: pytest.FixtureRequest) -> EventLog:
        return LOGS[request.param]()
