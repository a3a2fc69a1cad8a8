"""Servers whose guards look for a word."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
from tests.http.guards.odd_guards import WORD

TOOLS = "tests.http.guards.magic_tools:MagicTools"

SAID = f"I know that the word is {WORD}, and that this is all that there is to say."
"""A text of a model that has the word."""

ServeGuarded = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="session")
def serve_guarded(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> ServeGuarded:
    """Start a server with a guard named "words": `with serve_guarded("mask", "output") as server`.

    It does that with the word, at these places.
    """

    @contextmanager
    def serve(does: str, *places: str, **settings: Any) -> Iterator[Any]:
        folder = tmp_path_factory.mktemp("guarded")
        options = f"does = {json.dumps(does)}\nplaces = {json.dumps(places)}\n"
        file = folder / "guarded.toml"
        file.write_text(f"[options.guard.words]\n{options}")
        given = {
            "guard": ["words=tests.http.guards.odd_guards:WordGuard"],
            "guards.window": 10,
            "store": "sqlite",
            **settings,
        }
        with serve_from(folder, config=file, **given) as server:
            yield server

    return serve


@pytest.fixture(scope="session")
def client_of() -> Callable[[Any], httpx.Client]:
    return lambda server: httpx.Client(base_url=server.api, timeout=30)
