"""dependency-injector, loaded without pydantic.

It would load pydantic where that is installed, for a kind of provider that nobody uses here: 5 MB
and a fiftieth of a second of each start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Any


class _Absence(MetaPathFinder):
    """Finds no module of this name, and lets nobody else look for it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Let an optional import of this module fail in this block, unless it is loaded already."""
    absence = _Absence(module)
    sys.meta_path.insert(0, absence)
    try:
        yield
    finally:
        sys.meta_path.remove(absence)


with _without("pydantic"):
    from dependency_injector import containers, providers

__all__ = ["containers", "providers"]
