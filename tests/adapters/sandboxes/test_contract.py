"""Sandboxes of bubblewrap keep the promises of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.adapters.sandboxes.conftest import make_sandboxes

from antiphon.application.ports import Sandboxes
from antiphon.testing.sandboxes import SandboxesContract

pytestmark = pytest.mark.slow


class TestBubblewrapSandboxes(SandboxesContract):
    @pytest_asyncio.fixture
    async def sandboxes(self) -> AsyncIterator[Sandboxes]:
        sandboxes = make_sandboxes(commands=True)
        await sandboxes.start()
        yield sandboxes
        await sandboxes.aclose()
