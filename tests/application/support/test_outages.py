"""A failure that repeats is logged once, and once more when it is over."""

from __future__ import annotations

import logging

import pytest

from antiphon.application.support.outages import Outages
from antiphon.domain.errors import AntiphonError, EngineDead, StoreError

logger = logging.getLogger("antiphon.tests")


@pytest.mark.parametrize(
    ("error", "has_stack"), [(EngineDead("no GPU"), False), (StoreError("no disk"), True)]
)
def test_an_outage_has_a_beginning_and_an_end_in_the_log(
    caplog: pytest.LogCaptureFixture, error: AntiphonError, has_stack: bool
) -> None:
    caplog.set_level("INFO")
    outages = Outages(logger, "nothing starts")
    for _ in range(2):
        with outages.log_outages():
            raise error
    for _ in range(2):
        with outages.log_outages():
            pass
    assert caplog.messages == [f"nothing starts: {error}", "recovered: nothing starts"]
    assert bool(caplog.records[0].exc_info) == has_stack
