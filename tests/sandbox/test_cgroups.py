"""Groups of processes around sandboxes: made where that is possible, asked for, or done without.

The folders here are like the kernel's, which only whoever runs the machine can give; where it has
given some, the last test is on these.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.ids import new_id
from antiphon.adapters.sandboxes import cgroups
from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes
from antiphon.adapters.sandboxes.bwrap_command import Limits
from antiphon.adapters.sandboxes.cgroups import Cgroups, NoCgroup
from antiphon.domain.errors import SettingsError

from .conftest import PYTHON

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


def found(tmp_path: Path, *, delegated: bool = False) -> Cgroups:
    return cgroups.find(tmp_path / "root", tmp_path / "own", lambda _: delegated)


def sandboxes_with(find: Callable[[], Cgroups], **given: Any) -> BubblewrapSandboxes:
    limits = Limits(memory_bytes=2**29, disk_bytes=2**24)
    return BubblewrapSandboxes(
        python=PYTHON, new_id=new_id, limits=limits, find_groups=find, **given
    )


def none_here() -> Cgroups:
    raise NoCgroup("nobody gave one")


def test_a_group_has_the_limits_that_it_is_given(tree: Make) -> None:
    group = found(tree()).make(memory_bytes=1024, processes=7)
    assert group.folder.parent.name == "server"
    written = {each.name: each.read_text() for each in group.folder.iterdir()}
    assert written == {"memory.max": "1024", "pids.max": "7"}


def test_groups_are_made_beside_the_server_where_it_was_told_that_it_may(tree: Make) -> None:
    root = tree()
    (root / "root/a.service/server/cgroup.subtree_control").unlink()  # processes are in the way
    with pytest.raises(NoCgroup, match="No such file"):
        found(root)
    group = found(root, delegated=True).make(memory_bytes=1024, processes=7)
    assert group.folder.parent.name == "a.service"


def test_controllers_are_switched_on(tree: Make) -> None:
    root = tree(enabled="")
    found(root)
    control = root / "root/a.service/server/cgroup.subtree_control"
    assert control.read_text() == "+memory +pids"


def test_groups_that_a_server_left_behind_are_removed(tree: Make) -> None:
    root = tree()
    left = root / "root/a.service/server/antiphon-1-1"
    left.mkdir()
    found(root)
    assert not left.exists()


def test_without_version_2_there_are_none(tree: Make, tmp_path: Path) -> None:
    root = tree(version="8:memory:")
    with pytest.raises(NoCgroup, match="no cgroup of version 2"):
        found(root)
    with pytest.raises(NoCgroup, match="there is no cgroup v2"):
        cgroups.find(tmp_path / "elsewhere")


async def test_a_sandbox_is_in_its_group_before_anything_runs(tree: Make) -> None:
    root = tree()
    sandboxes = sandboxes_with(lambda: found(root))
    with pytest.raises(SettingsError, match="not in its cgroup"):
        # A folder that is only like a group takes the process that entered; its children, which a
        # kernel would put there too, are missing, and that is seen.
        await sandboxes.start()
    [group] = (root / "root/a.service/server").glob("antiphon-*")
    assert (group / "cgroup.procs").read_text().strip().isdigit()
    assert int((group / "memory.max").read_text()) > 2**29


async def test_where_none_can_be_made_that_is_said() -> None:
    sandboxes = sandboxes_with(none_here)
    await sandboxes.start()
    try:
        assert sandboxes.limited_by == "rlimits, without a cgroup (nobody gave one)"
        assert (await sandboxes.open("a").run("1")).logs == "1\n"
    finally:
        await sandboxes.aclose()


async def test_where_one_is_required_there_is_no_server_without() -> None:
    with pytest.raises(SettingsError, match="nobody gave one.*Delegate"):
        await sandboxes_with(none_here, cgroup="required").start()


async def test_nobody_looks_for_one_that_is_not_wanted() -> None:
    sandboxes = sandboxes_with(none_here, cgroup="off")
    await sandboxes.start()
    await sandboxes.aclose()
    assert sandboxes.limited_by == "rlimits"


async def test_the_kernel_holds_a_group_to_its_limits() -> None:
    try:
        cgroups.find()
    except NoCgroup as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    sandboxes = BubblewrapSandboxes(
        python=PYTHON,
        new_id=new_id,
        limits=Limits(commands=True, memory_bytes=2**28, disk_bytes=2**24),
        cgroup="required",
    )
    await sandboxes.start()
    try:
        sandbox = sandboxes.open("a")
        take = "python3 -c 'held = b\"x\" * (200 * 2**20); input()' & "
        ended = [each async for each in sandbox.command(f"sleep 60 | ({take * 8} wait)")]
        assert "started anew" in str(ended) or "Killed" in str(ended)
    finally:
        await sandboxes.aclose()
