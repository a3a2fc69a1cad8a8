"""All servers of a store share one seal key; another key is refused or set by a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.server.seal_key import warn_of_writers

pytestmark = pytest.mark.slow

CHANGE = (sys.executable, "-m", "antiphon.entrypoints.cli", "change-seal-key")

Serve = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shared.db'}"


def starts(serve_from: Serve, folder: Path, **settings: Any) -> bool:
    with serve_from(folder, **settings):
        return True


def refusal(serve_from: Serve, folder: Path, **settings: Any) -> str:
    with pytest.raises(SettingsError) as error, serve_from(folder, **settings):
        pass
    return str(error.value)


def test_a_server_with_another_key_than_its_store_does_not_start(
    serve_from: Serve, tmp_path: Path, store: str
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with serve_from(ours, store=store):
        sentence = refusal(serve_from, theirs, store=store)
        assert starts(serve_from, theirs, store=store, seal_key_file=ours / "seal.key")
    assert f"another seal key than {theirs / 'seal.key'}" in sentence
    assert "--seal-key-file" in sentence
    assert "`antiphon change-seal-key`" in sentence
    assert refusal(serve_from, theirs, store=store) == sentence


def test_a_command_changes_the_key_of_a_store(
    serve_from: Serve, tmp_path: Path, store: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    assert starts(serve_from, old, store=store)
    changed = subprocess.run(
        [*CHANGE, "--store", store, "--data-dir", str(new)],
        env={k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")},
        encoding="utf-8",
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (changed.returncode, changed.stdout) == (0, ""), changed.stderr
    assert changed.stderr == f"{new / 'seal.key'} is the seal key of {store}.\n"
    assert "another seal key" in refusal(serve_from, old, store=store)
    assert starts(serve_from, new, store=store)


@pytest.mark.parametrize(("mode", "warnings"), [(0o777, 1), (0o775, 0), (0o700, 0)])
def test_a_folder_that_all_users_may_write_is_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    warn_of_writers(folder)
    assert len(caplog.records) == warnings
    assert all(str(folder) in record.getMessage() for record in caplog.records)
