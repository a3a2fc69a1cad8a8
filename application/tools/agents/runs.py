"""The services that run responses, as sub-agents use them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Protocol

from antiphon.application.input.submission import Submission
from antiphon.domain.events import Event
from antiphon.domain.responses.response import Response

ID_CHARS = 48
"""The characters of an id after its prefix (adapters/ids.py)."""


def derived_id(prefix: str, *parts: str) -> str:
    """Return the id that always follows from these parts: what is repeated finds what it made.

    >>> derived_id("resp", "resp_1", "call_1")[:12]
    'resp_d260db5'
    """
    digest = sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{prefix}_{digest[:ID_CHARS]}"


class AgentRuns(Protocol):
    """Starts, reads and stops the responses of sub-agents, whichever server runs them."""

    @abstractmethod
    async def start(self, submission: Submission) -> None:
        """Start the response, or let it wait for a server with a free slot.

        One that is there already is not started again. Raises: RequestError, StoreError.
        """

    @abstractmethod
    async def get(self, tenant: str, response_id: str) -> Response:
        """Raises: NotFound, StoreError."""

    @abstractmethod
    async def read(self, tenant: str, response_id: str, after: int) -> Sequence[Event]:
        """Return stored events after number `after`, some of them if there are many.

        Raises: NotFound if there is no log; StoreError.
        """

    @abstractmethod
    async def wait(self, tenant: str, after: Mapping[str, int], limit_s: float) -> None:
        """Return when a log may have events after its number in `after`, or after `limit_s`."""

    @abstractmethod
    async def stop(self, tenant: str, response_id: str) -> None:
        """Cancel the response if it has not ended. Raises: NotFound, StoreError."""

    @abstractmethod
    def cancel_here(self, response_id: str) -> None:
        """Cancel a run of this server, without waiting for its end."""

    @abstractmethod
    def lend_slot(self, response_id: str) -> AbstractContextManager[None]:
        """Let others have the slot of a background response while it only waits."""
