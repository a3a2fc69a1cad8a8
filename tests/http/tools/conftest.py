"""Fixtures for the tests of tools."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest


@pytest.fixture(scope="module")
def programs(serve_odd_tools: Any) -> Iterator[httpx.Client]:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    with serve_odd_tools(
        **{"programs": True, "code.program_cpu_s": 1, "code.program_memory_mb": 16}
    ) as client:
        yield client
