"""The unit, as systemd-analyze reads it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.deploy.tools import DEPLOY, program, run

UNIT = DEPLOY / "systemd/antiphon.service"
DROP_IN = DEPLOY / "systemd/code-interpreter.conf"
MAX_EXPOSURE = 1.5
MAX_EXPOSURE_WITH_CODE = 4.0
"""Of 10; 9.6 is a unit that restricts nothing."""

pytestmark = pytest.mark.deploy


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with the program of this environment, which verify wants to find."""
    text = UNIT.read_text()
    own = str(Path(sys.executable).with_name("antiphon"))
    assert text.count("ExecStart=/opt/antiphon/bin/antiphon ") == 1
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/antiphon/bin/antiphon", own))
    return copy


def with_code(unit: Path) -> Path:
    folder = unit.with_name(f"{unit.name}.d")
    folder.mkdir()
    shutil.copy(DROP_IN, folder)
    return unit


def exposure(unit: Path) -> float:
    command = (program("systemd-analyze"), "security", "--offline=true", "--no-pager")
    found = re.search(r"exposure level for \S+: ([\d.]+)", run(*command, str(unit)))
    assert found is not None
    return float(found[1])


def test_systemd_reads_the_unit(unit: Path) -> None:
    run(program("systemd-analyze"), "verify", "--man=no", str(unit))


def test_systemd_reads_the_unit_with_code(unit: Path) -> None:
    run(program("systemd-analyze"), "verify", "--man=no", str(with_code(unit)))


def test_a_server_is_hardly_exposed(unit: Path) -> None:
    assert exposure(unit) <= MAX_EXPOSURE


def test_what_the_sandbox_needs_costs_a_known_part_of_that(unit: Path) -> None:
    alone = exposure(unit)
    assert alone < exposure(with_code(unit)) <= MAX_EXPOSURE_WITH_CODE


def test_systemd_reads_the_user() -> None:
    run(program("systemd-sysusers"), "--dry-run", str(DEPLOY / "systemd/antiphon.sysusers"))
