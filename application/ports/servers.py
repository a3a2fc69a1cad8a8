"""The other servers of a store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from antiphon.domain.json import Json


class OtherServers(Protocol):
    """The other servers of the store, as far as they have containers and an address."""

    @abstractmethod
    async def find(self, tenant: str, container_id: str) -> str | None:
        """Return the tag of the live server that has the tenant's container, or None.

        Raises: ServerUnreachable if the server that made it does not answer; StoreError.
        """

    @abstractmethod
    async def containers(self, tenant: str) -> Sequence[Json]:
        """Return the tenant's containers at the servers that answer soon, as the API shows them.

        Those of one server are in the order in which they were made. Raises: StoreError.
        """
