"""A scripted Chat Completions server, in the styles of several."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.upstreams.chat_server import ScriptedChatServer, scripted_chat_server


@pytest.fixture
def upstream() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as server:
        yield server
