"""Contract tests for adapters of your own: subclass one, override its fixture, run pytest.

They need pytest and pytest-asyncio. See each class for an example.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "antiphon.testing.engine",
    "antiphon.testing.event_log",
    "antiphon.testing.file_store",
    "antiphon.testing.key_store",
    "antiphon.testing.outbox",
    "antiphon.testing.idempotency_store",
    "antiphon.testing.response_store",
    "antiphon.testing.run_store",
    "antiphon.testing.store",
    "antiphon.testing.tool_server",
)
