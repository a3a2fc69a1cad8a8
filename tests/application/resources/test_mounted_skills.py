"""Which skills a container gets, and what happens to those that are deleted meanwhile."""

from __future__ import annotations

from itertools import count

import pytest
from tests.support.skill_archives import inline, reference, skill

from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.resources.files import CreateFile, FileLimits
from antiphon.application.resources.skills import operations as o
from antiphon.application.resources.skills.contents import SkillContents
from antiphon.application.resources.skills.index import SkillIndex
from antiphon.application.resources.skills.mount import FindSkills
from antiphon.domain.errors import NotFound, RequestError, SandboxError

US, THEM = "us", "them"
PLACE = "tools[0].environment.skills"


class World:
    """A tenant with one skill, and what finds the skills of requests."""

    def __init__(self, *, can_mount: bool = True, max_bytes: int = 10**6) -> None:
        files, numbers = MemoryFileStore(), count()
        limits = FileLimits(max_bytes=10**6, quota_bytes=10**6)
        create_file = CreateFile(files, limits=limits, new_id=str, now=lambda: 1.0)
        self.index = SkillIndex(MemoryStore())
        self.contents = SkillContents(files, create_file, now=lambda: 1.0)
        self.find = FindSkills(
            self.index, self.contents, {}, can_mount=can_mount, max_bytes=max_bytes
        )
        self._add = o.AddVersion(
            self.index,
            self.contents,
            new_id=lambda prefix: f"{prefix}_{next(numbers)}",
            now=lambda: 1.0,
        )

    async def create(self) -> str:
        upload = o.SkillUpload(files=[("a.zip", skill())], is_archive=True)
        return (await o.CreateSkill(self._add)(US, upload)).id


async def test_a_reference_is_read_when_the_container_starts() -> None:
    world = World()
    options = {"skills": [reference(await world.create())]}
    [found] = await world.find(options, PLACE, tenant=US)
    assert found.info.path == "/mnt/skills/csv-tools"
    assert await found.read() == skill()


async def test_a_skill_that_was_deleted_before_the_container_started_is_an_error() -> None:
    world = World()
    skill_id = await world.create()
    [found] = await world.find({"skills": [reference(skill_id)]}, PLACE, tenant=US)
    await o.DeleteSkill(world.index, world.contents)(US, skill_id)
    with pytest.raises(SandboxError, match="can no longer be read"):
        await found.read()


async def test_a_skill_of_another_tenant_is_not_found() -> None:
    world = World()
    skill_id = await world.create()
    with pytest.raises(NotFound) as refused:
        await world.find({"skills": [reference(skill_id)]}, PLACE, tenant=THEM)
    assert refused.value.param == f"{PLACE}[0].skill_id"


async def test_sandboxes_that_mount_none_have_no_skills() -> None:
    world = World(can_mount=False)
    assert await world.find({}, PLACE, tenant=US) == ()
    assert await world.find({"skills": []}, PLACE, tenant=US) == ()
    with pytest.raises(RequestError, match="no skills") as refused:
        await world.find({"skills": [inline(skill())]}, PLACE, tenant=US)
    assert refused.value.param == PLACE


async def test_all_skills_of_a_container_together_have_a_limited_size() -> None:
    world = World(max_bytes=2**20)
    body = "x" * 600_000
    one, other = (inline(skill(name, body=body), name) for name in ("one", "other"))
    assert len(await world.find({"skills": [one]}, PLACE, tenant=US)) == 1
    with pytest.raises(RequestError, match="1 MB") as refused:
        await world.find({"skills": [one, other]}, PLACE, tenant=US)
    assert refused.value.param == PLACE


async def test_the_same_archive_is_the_same_version_wherever_it_comes_from() -> None:
    world = World()
    sent = [inline(skill()), inline(skill(body="Other."), "other")]
    [first, other] = await world.find({"skills": sent}, PLACE, tenant=US)
    [again] = await world.find({"skills": sent[:1]}, PLACE, tenant=THEM)
    assert first.version == again.version != other.version
