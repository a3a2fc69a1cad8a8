"""A guard: words that neither a request nor a model may use here.

    antiphon serve --guard words=examples.guards:BannedWords --guards-window 40

with the words in the settings file:

    [options.guard.words]
    words = ["abracadabra", "hocus pocus"]
    masked = false
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated

from msgspec import Meta, Struct

from antiphon.application.ports import Guard
from antiphon.domain.responses.guards import (
    PLACES,
    GuardPlace,
    GuardQuestion,
    Pass,
    Refuse,
    Replace,
    Verdict,
)


class Options(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`words` are looked for in small and large letters. `masked`: they become stars.

    `places` are where it is asked: input, tool_call, tool_result and output.
    """

    words: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)] = (
        "abracadabra",
    )
    masked: bool = False
    places: tuple[GuardPlace, ...] = PLACES


class BannedWords(Guard):
    """Refuses texts with one of the words, or masks it."""

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008 - frozen
        self._masked = options.masked
        self._places = options.places
        self._words = re.compile("|".join(map(re.escape, options.words)), re.IGNORECASE)

    @property
    def places(self) -> Collection[GuardPlace]:
        return self._places

    async def check(self, asked: GuardQuestion) -> Verdict:
        if not self._words.search(asked.text + " " + asked.tool):
            return Pass()
        if self._masked:
            return Replace(self._words.sub(lambda word: "*" * len(word[0]), asked.text))
        return Refuse("I cannot say that here.")
