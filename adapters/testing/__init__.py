"""Contract tests for adapters of your own: subclass one, override its fixture, run pytest.

They need pytest and pytest-asyncio. See each class for an example.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "antiphon.adapters.testing.engine_contract",
    "antiphon.adapters.testing.event_log",
    "antiphon.adapters.testing.file_store",
    "antiphon.adapters.testing.key_store",
    "antiphon.adapters.testing.outbox",
    "antiphon.adapters.testing.repeat_store",
    "antiphon.adapters.testing.response_store",
    "antiphon.adapters.testing.run_store",
    "antiphon.adapters.testing.store",
    "antiphon.adapters.testing.tool_server",
)
