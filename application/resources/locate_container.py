"""Find out whether a response's container is at this server, at another one, or lost."""

from __future__ import annotations

from antiphon.application.ports import OtherServers, Sandbox
from antiphon.application.resources.containers import FindContainer
from antiphon.domain.errors import ContainerElsewhere, NotFound, ServerUnreachable


class LocateContainer:
    """Finds containers at this server, or says which of the `others` has them."""

    def __init__(self, find: FindContainer, others: OtherServers | None = None) -> None:
        self._find = find
        self._others = others

    @property
    def has_others(self) -> bool:
        return self._others is not None

    async def __call__(self, tenant: str, container_id: str, *, path: str) -> Sandbox:
        """Return a container of this server; a request names it in the field `path`.

        Raises: ContainerElsewhere; NotFound if it is nowhere, or its server does not answer.
        """
        try:
            return self._find(tenant, container_id, path=path)
        except NotFound:
            try:
                await self._look_elsewhere(tenant, container_id, path)
            except ServerUnreachable as exc:
                raise NotFound(exc.message, param=path, code=exc.code) from None
            raise

    async def latest(self, tenant: str, container_id: str, *, path: str) -> Sandbox | None:
        """Return the container that a conversation has used, or None if it is lost.

        Raises: ContainerElsewhere.
        """
        try:
            return await self(tenant, container_id, path=path)
        except NotFound:
            return None

    async def _look_elsewhere(self, tenant: str, container_id: str, path: str) -> None:
        """Raises: ContainerElsewhere, ServerUnreachable."""
        server = await self._others.find(tenant, container_id) if self._others else None
        if server is not None:
            raise ContainerElsewhere(container_id, server=server, param=path)
