"""Guards for the tests: one that looks for a word, and does with it what its options say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import Any, Literal

from msgspec import Struct

from antiphon.application.ports import Guard
from antiphon.domain.responses.guards import (
    PLACES,
    GuardPlace,
    GuardQuestion,
    Pass,
    Refuse,
    Replace,
    Stop,
    Verdict,
)

WORD = "xyzzy"
MESSAGE = "No magic here."


class Options(Struct, kw_only=True, frozen=True):
    """`does`: what the guard does with a text that has the word."""

    does: Literal["refuse", "stop", "mask", "raise", "hang", "nonsense"] = "refuse"
    places: tuple[GuardPlace, ...] = PLACES
    word: str = WORD


class WordGuard(Guard):
    def __init__(self, options: Options = Options()) -> None:  # noqa: B008 - frozen
        self._options = options
        self._word = re.compile(re.escape(options.word), re.IGNORECASE)

    @property
    def places(self) -> Collection[GuardPlace]:
        return self._options.places

    async def check(self, asked: GuardQuestion) -> Verdict:
        if not self._word.search(asked.text):
            return Pass()
        match self._options.does:
            case "refuse":
                return Refuse(MESSAGE)
            case "stop":
                return Stop("magic")
            case "mask":
                return Replace(self._word.sub("*****", asked.text))
            case "raise":
                raise RuntimeError("magic")
            case "hang":
                await asyncio.Event().wait()
        nonsense: Any = "no"
        return nonsense
