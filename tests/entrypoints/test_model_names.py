"""A model that was given no name is known by its folder's."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.models import vllm_models


def names(model: str, *served: str) -> list[str]:
    [one] = vllm_models(Settings(model=model, served_model_name=served))
    return list(one.names)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models" / "Qwen3-8B"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("given", ["./models/Qwen3-8B", "models/Qwen3-8B/", "{folder}"])
def test_a_folder_is_served_by_its_name_and_by_its_path(folder: Path, given: str) -> None:
    given = given.format(folder=folder)
    assert names(given) == ["Qwen3-8B", given]


def test_the_folder_in_which_the_server_is_started_has_a_name_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert names(".") == ["Qwen3-8B", "."]


def test_a_name_that_is_no_folder_stays_as_it_is(folder: Path) -> None:
    assert names("Qwen/Qwen3-8B") == ["Qwen/Qwen3-8B"]


def test_names_of_ones_own_are_the_only_ones(folder: Path) -> None:
    assert names(str(folder), "qwen", "default") == ["qwen", "default"]
