"""The skills of a tenant, on every store: all servers that share it have the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.support.skill_archives import skill

from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.application.ports import Store
from antiphon.application.resources.files import CreateFile, FileLimits, skills_space
from antiphon.application.resources.skills import operations as o
from antiphon.application.resources.skills.contents import LEFTOVER_AFTER_S, SkillContents
from antiphon.application.resources.skills.index import MAX_VERSIONS, SkillIndex, Skills
from antiphon.domain.errors import NotFound, RequestError

US, THEM = "us", "thém"
UPLOAD = o.SkillUpload(files=[("skill.zip", skill())], is_archive=True)
NUMBERS = count()


class Server(Struct, frozen=True):
    """The skills at one of two servers."""

    index: SkillIndex
    contents: SkillContents
    files: MemoryFileStore
    clock: list[float]

    @property
    def add(self) -> o.AddVersion:
        return o.AddVersion(
            self.index,
            self.contents,
            new_id=lambda prefix: f"{prefix}_{next(NUMBERS)}",
            now=lambda: self.clock[0],
        )

    async def create(self, tenant: str = US) -> str:
        return (await o.CreateSkill(self.add)(tenant, UPLOAD)).id

    async def create_version(self, skill_id: str, *, is_default: bool = False) -> str:
        create = o.CreateSkillVersion(self.add)
        return (await create(US, skill_id, UPLOAD, is_default=is_default)).version

    async def versions(self, skill_id: str) -> list[str]:
        return [str(each.number) for each in (await self.index.get(US, skill_id)).versions]


@pytest.fixture
async def servers(new_store: Callable[[], Store]) -> AsyncIterator[list[Server]]:
    stores = [new_store(), new_store()]
    for store in stores:
        await store.start()
    files, clock = MemoryFileStore(), [1000.0]
    limits = FileLimits(max_bytes=10**6, quota_bytes=10**6)
    create = CreateFile(files, limits=limits, new_id=str, now=lambda: clock[0])
    contents = SkillContents(files, create, now=lambda: clock[0])
    yield [Server(SkillIndex(store), contents, files, clock) for store in stores]
    for store in stores:
        await store.aclose()


async def test_what_one_server_creates_the_other_one_has(servers: list[Server]) -> None:
    one, other = servers
    skill_id = await one.create()
    assert await other.create_version(skill_id) == "2"
    assert await one.create_version(skill_id, is_default=True) == "3"
    for server in servers:
        found = await o.GetSkill(server.index)(US, skill_id)
        assert (found.name, found.default_version, found.latest_version) == ("csv-tools", "3", "3")
        with pytest.raises(NotFound):
            await o.GetSkill(server.index)(THEM, skill_id)


async def test_uploads_at_the_same_time_get_numbers_of_their_own(servers: list[Server]) -> None:
    skill_id = await servers[0].create()
    uploads = [servers[number % 2].create_version(skill_id) for number in range(8)]
    assert sorted(await asyncio.gather(*uploads)) == [str(number) for number in range(2, 10)]
    created = await asyncio.gather(*[servers[number % 2].create(THEM) for number in range(4)])
    assert {each.id for each in await servers[0].index.load(THEM)} == set(created)


async def test_a_deleted_version_leaves_its_number_and_no_file(servers: list[Server]) -> None:
    one, other = servers
    skill_id = await one.create()
    for _ in range(2):
        await one.create_version(skill_id)
    delete = o.DeleteSkillVersion(other.index, other.contents)
    await delete(US, skill_id, "3")
    assert (await o.GetSkill(one.index)(US, skill_id)).latest_version == "2"
    assert await one.create_version(skill_id) == "4"
    with pytest.raises(RequestError, match="default version"):
        await delete(US, skill_id, "1")
    with pytest.raises(NotFound):
        await delete(US, skill_id, "3")
    assert await one.versions(skill_id) == ["1", "2", "4"]
    assert len(await one.files.list_all_files(skills_space(US))) == 3
    await o.DeleteSkill(other.index, other.contents)(US, skill_id)
    assert await one.files.list_all_files(skills_space(US)) == []
    assert await one.index.load(US) == ()


async def test_the_only_version_is_deleted_with_its_skill(servers: list[Server]) -> None:
    one, other = servers
    skill_id = await one.create()
    await o.DeleteSkillVersion(other.index, other.contents)(US, skill_id, "1")
    with pytest.raises(NotFound):
        await one.index.get(US, skill_id)


async def test_what_a_killed_server_left_is_removed_after_an_hour(servers: list[Server]) -> None:
    one, _ = servers
    await one.contents.add(US, "skillver_left", "left.zip", b"left")
    await one.create()
    assert len(await one.files.list_all_files(skills_space(US))) == 2
    one.clock[0] += LEFTOVER_AFTER_S + 1
    await one.create()
    names = {each.filename for each in await one.files.list_all_files(skills_space(US))}
    assert names == {"csv-tools.zip"}


async def test_a_tenant_has_a_limited_number_of_versions(servers: list[Server]) -> None:
    one, other = servers
    skill_id = await one.create()

    def fill(skills: Skills) -> Skills:
        [skill] = skills
        versions = tuple(
            replace(skill.latest, number=number, id=f"skillver_{number}")
            for number in range(1, MAX_VERSIONS + 1)
        )
        return (replace(skill, versions=versions, last_number=MAX_VERSIONS),)

    await one.index.change(US, fill)
    with pytest.raises(RequestError, match="maximum"):
        await other.create_version(skill_id)
    with pytest.raises(RequestError, match="maximum"):
        await other.create()
    assert await other.create(THEM)


async def test_archives_count_in_the_quota_of_files_and_files_in_theirs() -> None:
    files = MemoryFileStore()
    limits = FileLimits(max_bytes=10**6, quota_bytes=len(UPLOAD.files[0][1]) + 10)
    create = CreateFile(files, limits=limits, new_id=lambda _: "file_1", now=lambda: 1.0)
    contents = SkillContents(files, create, now=lambda: 1.0)
    await contents.add(US, "skillver_1", "a.zip", UPLOAD.files[0][1])
    with pytest.raises(RequestError, match="in use") as refused:
        await create(US, filename="a", purpose="user_data", content=bytes(11))
    assert refused.value.param == "file"
    await create(US, filename="a", purpose="user_data", content=bytes(10))
    with pytest.raises(RequestError, match="in use") as refused:
        await contents.add(US, "skillver_2", "b.zip", b"b")
    assert refused.value.param == "files"
