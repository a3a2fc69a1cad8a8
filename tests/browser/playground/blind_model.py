"""A model that reads no images and answers nothing, for the tests of the playground."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from antiphon.application.ports import Model
from antiphon.domain.errors import EngineDead


class Blind(Model):
    format_name = "blind"
    context_length = 4096
    reads_images = False
    efforts: Sequence[str] = ()
    sampling_defaults: Mapping[str, Any] = {}

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    @property
    def names(self) -> Sequence[str]:
        return self._names

    async def start(self) -> None:
        pass

    async def count(self, turn: Any) -> NoReturn:
        raise EngineDead("it answers nothing")

    async def start_turn(self, turn: Any, **_: Any) -> NoReturn:
        raise EngineDead("it answers nothing")

    async def aclose(self) -> None:
        pass
