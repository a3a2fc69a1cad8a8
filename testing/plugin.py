"""A pytest plugin that serves the scripted models: `antiphon_server` and what goes with it.

pytest loads it wherever Antiphon is installed; `-p no:antiphon` leaves it out. The server is
imported only by tests that use a fixture of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from antiphon.testing.server import ScriptedServer


@pytest.fixture(scope="session")
def antiphon_settings() -> Mapping[str, Any]:
    """Override this fixture to give `antiphon_server` other settings than its defaults."""
    return {}


@pytest.fixture(scope="session")
def antiphon_server(
    antiphon_settings: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScriptedServer]:
    """The scripted models on a port of this machine, for all tests: base_url, models, api_key."""
    from antiphon.testing.server import serve_scripted

    with serve_scripted(tmp_path_factory.mktemp("antiphon"), **antiphon_settings) as server:
        yield server


@pytest.fixture
def serve_antiphon(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., AbstractContextManager[ScriptedServer]]:
    """Start a server of the test's own: `with serve_antiphon(auth="on") as server: …`."""
    from antiphon.testing.server import serve_scripted

    return lambda **settings: serve_scripted(tmp_path_factory.mktemp("antiphon"), **settings)
