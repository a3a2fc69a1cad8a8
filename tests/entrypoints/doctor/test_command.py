"""`antiphon doctor`, run in its own process."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_mcp_server import site

pytestmark = pytest.mark.slow

MODULE = (sys.executable, "-m", "antiphon.entrypoints.cli", "doctor")
CANARY = "c4nary-s3cret"


def doctor(
    folder: Path, *arguments: str, before: Callable[[], None] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")}
    return subprocess.run(
        [*MODULE, "--port", "0", *arguments],
        cwd=folder,
        env={**inherited, "ANTIPHON_DATA_DIR": str(folder / "data"), **variables},
        encoding="utf-8",
        capture_output=True,
        preexec_fn=before,
        timeout=50,
        check=False,
    )


def checks_of(finished: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    checks: list[dict[str, Any]] = json.loads(finished.stdout)["checks"]
    return checks


def test_a_machine_without_faults_passes_and_nothing_is_changed(tmp_path: Path) -> None:
    finished = doctor(tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "scripted-chat is ready" in finished.stdout
    assert "\x1b" not in finished.stdout
    assert list(tmp_path.iterdir()) == []


def test_scripts_get_one_object_and_quick_leaves_the_models_out(tmp_path: Path) -> None:
    finished = doctor(tmp_path, "--json", "--quick")
    assert finished.returncode == json.loads(finished.stdout)["exit_code"] == 0
    [models] = [each for each in checks_of(finished) if each["check"] == "models"]
    assert models["status"] == "skipped"


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--fail-on-warnings",), 1)])
def test_a_warning_fails_only_on_request(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    finished = doctor(tmp_path, "--quick", "--log-requests", *arguments)
    assert "warning  settings" in finished.stdout
    assert finished.returncode == code


def test_invalid_settings_are_wrong_usage(tmp_path: Path) -> None:
    finished = doctor(tmp_path, "--log-level", "loud")
    assert finished.returncode == 2
    assert "--log-level" in finished.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no ulimit")
def test_a_low_limit_of_open_files_is_a_warning(tmp_path: Path) -> None:
    finished = doctor(
        tmp_path,
        *("--json", "--quick"),
        before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)),
    )
    [files] = [each for each in checks_of(finished) if each["check"] == "open files"]
    assert files["status"] == "warning"
    assert "300 files" in files["found"]


def test_a_refused_credential_is_a_problem_that_shows_no_secret(tmp_path: Path) -> None:
    with site() as fake:
        (tmp_path / "antiphon.toml").write_text(
            f'[[mcp_servers]]\nlabel = "files"\nurl = "{fake.origin}/refused"\n'
            f'headers = {{ authorization = "Bearer {CANARY}" }}\n'
        )
        finished = doctor(
            tmp_path,
            "--quick",
            ANTIPHON_STORE=f"postgresql://anna:{CANARY}@127.0.0.1:1/kept",
            ANTIPHON_WEBHOOK_URL=f"http://127.0.0.1:1/{CANARY}",
            ANTIPHON_WEBHOOK_SECRET=f"whsec_{CANARY}",
        )
    assert finished.returncode == 1
    assert "problem  tool servers   The tool server 'files' does not list" in finished.stdout
    assert "problem  store" in finished.stdout
    assert CANARY not in finished.stdout + finished.stderr
