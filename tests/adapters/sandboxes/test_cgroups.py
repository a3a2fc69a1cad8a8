"""Cgroups around sandboxes: where they are available, where they are required, and without them.

Most tests use folders that imitate the kernel's, because only an administrator can delegate real
cgroups. Where real ones are available, the last test uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.sandboxes.conftest import PYTHON

from antiphon.adapters.ids import new_id
from antiphon.adapters.sandboxes import cgroups
from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes
from antiphon.adapters.sandboxes.bwrap_command import Limits
from antiphon.adapters.sandboxes.cgroups import Cgroups, CgroupUnavailable
from antiphon.domain.errors import SettingsError

pytestmark = pytest.mark.slow

Make = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Make:
    """Make a tree in which this process is in `/a.service/server`."""

    def make(*, enabled: str = "memory pids", version: str = "0::") -> Path:
        own = tmp_path / "root/a.service/server"
        own.mkdir(parents=True)
        (tmp_path / "root/cgroup.controllers").write_text("cpu memory pids")
        for folder in (own, own.parent):
            (folder / "cgroup.subtree_control").write_text(enabled)
        (tmp_path / "own").write_text(f"9:name=x:/\n{version}/a.service/server\n")
        return tmp_path

    return make


def find_cgroups(tmp_path: Path, *, is_delegated: bool = False) -> Cgroups:
    return cgroups.find(tmp_path / "root", tmp_path / "own", lambda _: is_delegated)


def make_sandboxes(
    find_cgroups: Callable[[], Cgroups], *, commands: bool = False, **options: Any
) -> BubblewrapSandboxes:
    limits = Limits(commands=commands, memory_bytes=2**29, disk_bytes=2**24)
    return BubblewrapSandboxes(
        python=PYTHON, new_id=new_id, limits=limits, find_cgroups=find_cgroups, **options
    )


def find_no_cgroups() -> Cgroups:
    raise CgroupUnavailable("none is delegated")


def test_a_group_has_the_requested_limits(tree: Make) -> None:
    group = find_cgroups(tree()).make(memory_bytes=1024, processes=7)
    assert group.folder.parent.name == "server"
    files = {each.name: each.read_text() for each in group.folder.iterdir()}
    assert files == {"memory.max": "1024", "pids.max": "7"}


def test_groups_are_made_beside_the_server_if_the_parent_is_delegated(tree: Make) -> None:
    root = tree()
    (root / "root/a.service/server/cgroup.subtree_control").unlink()  # the group has processes
    with pytest.raises(CgroupUnavailable, match="No such file"):
        find_cgroups(root)
    group = find_cgroups(root, is_delegated=True).make(memory_bytes=1024, processes=7)
    assert group.folder.parent.name == "a.service"


def test_controllers_are_enabled(tree: Make) -> None:
    root = tree(enabled="")
    find_cgroups(root)
    control = root / "root/a.service/server/cgroup.subtree_control"
    assert control.read_text() == "+memory +pids"


def test_groups_that_a_server_left_behind_are_removed(tree: Make) -> None:
    root = tree()
    leftover = root / "root/a.service/server/antiphon-1-1"
    leftover.mkdir()
    find_cgroups(root)
    assert not leftover.exists()


def test_without_cgroup_v2_no_groups_are_available(tree: Make, tmp_path: Path) -> None:
    root = tree(version="8:memory:")
    with pytest.raises(CgroupUnavailable, match="no cgroup of version 2"):
        find_cgroups(root)
    with pytest.raises(CgroupUnavailable, match="there is no cgroup v2"):
        cgroups.find(tmp_path / "elsewhere")


async def test_a_sandbox_enters_its_group_before_anything_runs(tree: Make) -> None:
    root = tree()
    sandboxes = make_sandboxes(lambda: find_cgroups(root))
    with pytest.raises(SettingsError, match="not in its cgroup"):
        # This folder only imitates a group: the process that enters it is in `cgroup.procs`, but
        # its children, which a kernel would add, are not, and the server notices.
        await sandboxes.start()
    [group] = (root / "root/a.service/server").glob("antiphon-*")
    assert (group / "cgroup.procs").read_text().strip().isdigit()
    assert int((group / "memory.max").read_text()) > 2**29


async def test_the_server_says_why_it_runs_without_cgroups() -> None:
    sandboxes = make_sandboxes(find_no_cgroups)
    await sandboxes.start()
    try:
        assert sandboxes.limited_by == "rlimits, without a cgroup (none is delegated)"
        assert (await sandboxes.open("a").run("1")).logs == "1\n"
    finally:
        await sandboxes.aclose()


async def test_the_server_does_not_start_without_a_required_cgroup() -> None:
    with pytest.raises(SettingsError, match=r"none is delegated.*Delegate"):
        await make_sandboxes(find_no_cgroups, cgroup="required").start()


async def test_the_server_starts_no_shell_without_a_cgroup() -> None:
    with pytest.raises(
        SettingsError, match=r"none is delegated.*Delegate.*--code-cgroup off\. Without"
    ):
        await make_sandboxes(find_no_cgroups, commands=True).start()


async def test_the_operator_can_have_a_shell_without_a_cgroup(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sandboxes = make_sandboxes(find_no_cgroups, commands=True, cgroup="off")
    await sandboxes.start()
    try:
        output = [each async for each in sandboxes.open("a").command("echo on")]
        assert "on\n" in str(output[0].stdout)  # type: ignore[union-attr]
    finally:
        await sandboxes.aclose()
    assert "may together use two or three times" in caplog.text


async def test_the_server_does_not_look_for_cgroups_if_they_are_off() -> None:
    sandboxes = make_sandboxes(find_no_cgroups, cgroup="off")
    await sandboxes.start()
    await sandboxes.aclose()
    assert sandboxes.limited_by == "rlimits"


async def test_the_kernel_enforces_the_limits_of_a_group() -> None:
    try:
        cgroups.find()
    except CgroupUnavailable as error:
        pytest.skip(f"no cgroups are available here: {error}")
    sandboxes = BubblewrapSandboxes(
        python=PYTHON,
        new_id=new_id,
        limits=Limits(commands=True, memory_bytes=2**28, disk_bytes=2**24),
        cgroup="required",
    )
    await sandboxes.start()
    try:
        sandbox = sandboxes.open("a")
        allocate = "python3 -c 'data = b\"x\" * (200 * 2**20); input()' & "
        output = [each async for each in sandbox.command(f"sleep 60 | ({allocate * 8} wait)")]
        assert "was restarted" in str(output) or "Killed" in str(output)
    finally:
        await sandboxes.aclose()
