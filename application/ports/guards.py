"""Guards: who is asked before a text is read, called or shown."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Protocol

from antiphon.domain.responses.guards import (
    PLACES,
    GuardPlace,
    GuardQuestion,
    ModerationScores,
    Verdict,
)


class Guard(Protocol):
    """Judges texts. The server asks it again and again while a model writes.

    Any number of questions may be asked at the same time. The time for an answer is limited. An
    exception, and what is no verdict, count as a guard that has failed.
    """

    @property
    def places(self) -> Collection[GuardPlace]:
        """The places where it is asked; by default, all."""
        return PLACES

    async def start(self) -> None:
        """Load what it needs. Does nothing by default.

        Raises: SettingsError, which says what to do.
        """
        return

    async def aclose(self) -> None:
        """Release what `start` took. Does nothing by default."""
        return

    @abstractmethod
    async def check(self, asked: GuardQuestion) -> Verdict:
        """Return the verdict on the text of the question: Pass, Replace, Refuse or Stop.

        The same text may be asked about again, with more after it, or on another server.
        """


class Moderator(Guard, Protocol):
    """A guard that also tells how strongly a text is flagged, and for what."""

    @property
    @abstractmethod
    def model(self) -> str:
        """The model that it asks, as requests name it."""

    @abstractmethod
    async def moderate(self, text: str, *, tenant: str) -> ModerationScores:
        """Return the scores of a text of any length. It raises whatever its server causes."""
