"""Our guards keep the promises of the port."""

from __future__ import annotations

import pytest
from examples.guards import BannedWords, Options

from antiphon.application.ports import Guard
from antiphon.testing.guards import GuardContract


class TestBannedWords(GuardContract):
    banned = "Abracadabra!"

    @pytest.fixture(params=[False, True])
    def guard(self, request: pytest.FixtureRequest) -> Guard:
        return BannedWords(Options(masked=request.param))
