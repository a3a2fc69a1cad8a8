"""The default names of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.models import build_models


def names(model: str, *served: str) -> list[str]:
    [one] = build_models(Settings(model=model, served_model_name=served))
    return list(one.names)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models" / "Qwen3-8B"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("path", ["./models/Qwen3-8B", "models/Qwen3-8B/", "{folder}"])
def test_a_folder_is_served_by_its_name_and_by_its_path(folder: Path, path: str) -> None:
    path = path.format(folder=folder)
    assert names(path) == ["Qwen3-8B", path]


def test_the_working_folder_is_served_by_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert names(".") == ["Qwen3-8B", "."]


def test_a_name_that_is_not_a_folder_is_kept(folder: Path) -> None:
    assert names("Qwen/Qwen3-8B") == ["Qwen/Qwen3-8B"]


def test_served_model_names_replace_the_default_ones(folder: Path) -> None:
    assert names(str(folder), "qwen", "default") == ["qwen", "default"]
