"""Classes that implement a port but for one method."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest


def members_of(port: type) -> Sequence[str]:
    """Return the names of the methods and properties of a port."""
    members = {name: getattr(port, name) for name in dir(port) if not name.startswith("_")}
    return [name for name, each in members.items() if callable(each) or isinstance(each, property)]


def class_without(method: str, port: type, *, base: type = object) -> type:
    """Return a class with all of the port but this method. `base` may be the port."""

    def member(*_: Any, **__: Any) -> None: ...

    members = {name: member for name in members_of(port) if name != method}
    return type("Mine", (base,), {**members, "label": "mine"})


class Own:
    """`own(cls)` makes the class `Mine` of the module `own.module`, which settings can name."""

    module = "own_incomplete_classes"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, own_class: type) -> None:
        module: Any = ModuleType(self.module)
        module.Mine = own_class
        self._monkeypatch.setitem(sys.modules, self.module, module)
