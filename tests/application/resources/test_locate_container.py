"""Where a response's container is: here, at another server, or nowhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from tests.support.toy_sandboxes import ToySandboxes

from antiphon.application.ports import OtherServers
from antiphon.application.resources.containers import FindContainer, ListContainers
from antiphon.application.resources.locate_container import LocateContainer
from antiphon.application.resources.server_addresses import server_tag_in
from antiphon.domain.errors import ContainerElsewhere, NotFound, ServerUnreachable
from antiphon.domain.json import Json

FOREIGN = f"cntr_{'a' * 48}"
OF_DEAD = f"cntr_{'d' * 48}"
PATH = "tools[0].container"


class OneOtherServer(OtherServers):
    """A server that has some containers of anna, beside one that is dead."""

    def __init__(self, *containers: Json) -> None:
        self._containers = containers

    async def find(self, tenant: str, container_id: str) -> str | None:
        if container_id == OF_DEAD:
            raise ServerUnreachable("It does not answer.", code="container_unreachable")
        is_there = tenant == "anna" and container_id == FOREIGN
        return server_tag_in(container_id) if is_there else None

    async def containers(self, tenant: str) -> Sequence[Json]:
        return self._containers if tenant == "anna" else []


@pytest.fixture
async def sandboxes() -> AsyncIterator[ToySandboxes]:
    sandboxes = ToySandboxes()
    await sandboxes.start()
    yield sandboxes
    await sandboxes.aclose()


def locate(sandboxes: ToySandboxes) -> LocateContainer:
    return LocateContainer(FindContainer(sandboxes), OneOtherServer())


async def test_a_container_of_this_server_is_used_here(sandboxes: ToySandboxes) -> None:
    own = sandboxes.open("anna")
    assert await locate(sandboxes)("anna", own.id, path=PATH) is own
    assert await locate(sandboxes).latest("anna", own.id, path=PATH) is own


async def test_a_container_of_another_server_is_named_with_its_server(
    sandboxes: ToySandboxes,
) -> None:
    for look in (locate(sandboxes), locate(sandboxes).latest):
        with pytest.raises(ContainerElsewhere) as raised:
            await look("anna", FOREIGN, path=PATH)
        assert (raised.value.server, raised.value.param) == ("a" * 16, PATH)


async def test_a_container_of_another_tenant_is_nowhere(sandboxes: ToySandboxes) -> None:
    own = sandboxes.open("anna")
    for container_id in (own.id, FOREIGN):
        with pytest.raises(NotFound):
            await locate(sandboxes)("ben", container_id, path=PATH)
        assert await locate(sandboxes).latest("ben", container_id, path=PATH) is None


async def test_a_container_of_a_dead_server_is_an_error_if_it_is_named_and_lost_if_not(
    sandboxes: ToySandboxes,
) -> None:
    with pytest.raises(NotFound, match="does not answer") as raised:
        await locate(sandboxes)("anna", OF_DEAD, path=PATH)
    assert (raised.value.param, raised.value.code) == (PATH, "container_unreachable")
    assert await locate(sandboxes).latest("anna", OF_DEAD, path=PATH) is None


async def test_a_server_without_others_knows_only_its_own(sandboxes: ToySandboxes) -> None:
    alone = LocateContainer(FindContainer(sandboxes))
    assert not alone.has_others
    with pytest.raises(NotFound):
        await alone("anna", FOREIGN, path=PATH)


async def test_a_list_has_what_all_servers_have_in_the_order_in_which_it_was_made(
    sandboxes: ToySandboxes,
) -> None:
    own = sandboxes.open("anna")
    older = {"id": f"cntr_{'a' * 48}", "created_at": own.created_at - 5, "name": "old"}
    newer = {"id": f"cntr_{'b' * 48}", "created_at": own.created_at + 5, "name": "new"}
    shared = {"id": own.id, "created_at": own.created_at, "name": ""}
    others = OneOtherServer(older, newer, shared)
    lists = ListContainers(FindContainer(sandboxes), others)

    async def ids(tenant: str = "anna", *, after: str | None = None, limit: int = 9) -> list[str]:
        page = await lists(tenant, after=after, limit=limit, order="desc", name=None)
        return [each["id"] for each in page.data]

    assert await ids() == [newer["id"], own.id, older["id"]]
    assert await ids(limit=1) == [newer["id"]]
    assert await ids(after=str(newer["id"])) == [own.id, older["id"]]
    assert await ids("ben") == []
    page = await lists("anna", after=None, limit=9, order="asc", name=None, everywhere=False)
    assert [each["id"] for each in page.data] == [own.id], "what another server asks for"
