"""The toy sandboxes of the tests pass the contract.

Those of bubblewrap do in tests/adapters/sandboxes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.support.toy_sandboxes import ToySandboxes

from antiphon.application.ports import Sandboxes
from antiphon.testing.sandboxes import SandboxesContract


class TestToySandboxes(SandboxesContract):
    @pytest_asyncio.fixture
    async def sandboxes(self) -> AsyncIterator[Sandboxes]:
        sandboxes = ToySandboxes()
        await sandboxes.start()
        yield sandboxes
        await sandboxes.aclose()
