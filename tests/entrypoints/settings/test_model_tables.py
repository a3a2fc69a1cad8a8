"""The tables of several models, which only a settings file can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.application.model.models import Models
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings, load
from antiphon.entrypoints.wiring.models import build_models, offer_models

SCRIPTED = 'name = "a"\nengine = "scripted"\n'
OWN_ENGINE = """\
from antiphon.application.ports import Model
from msgspec import Struct

class Options(Struct, forbid_unknown_fields=True):
    url: str
    timeout_s: float = 5.0

class Mine(Model):
    names, format_name, efforts = (), "words", ()
    reads_images, context_length, sampling_defaults = False, 1000, {}

    def __init__(self, names, options: Options):
        self.names, self.options = names, options

    async def count(self, turn):
        return 0

    async def start_turn(self, turn, **_):
        raise NotImplementedError

class Neither: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with an engine of the operator's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engines_of_a_team.py").write_text(OWN_ENGINE, encoding="utf-8")
    return tmp_path


def models(settings: Settings) -> Models:
    return offer_models(build_models(settings), settings)


def test_each_table_is_a_model_with_its_names(toml: Any) -> None:
    file = toml(f'[[models]]\n{SCRIPTED}[[models]]\nname = ["b", "c"]\nengine = "scripted"\n')
    assert [list(model.names) for model in models(load(file)).all] == [["a"], ["b", "c"]]


def test_the_other_fields_of_a_table_are_options_of_its_engine(toml: Any) -> None:
    table = f'{SCRIPTED}format = "harmony"\ncontext_length = 4096\n'
    [model] = load(toml(f"[[models]]\n{table}")).models
    assert (model.format, model.options) == ("harmony", {"context_length": 4096})
    vllm = 'name = "a"\nengine = "vllm"\nmodel = "./m"\noptions = ["--max-model-len", "4096"]\n'
    assert models(load(toml(f"[[models]]\n{vllm}"))).all


def test_a_model_falls_back_on_the_models_that_it_names(toml: Any) -> None:
    table = 'name = ["b", "c"]\nengine = "scripted"\nfallback = ["a"]\n'
    first, second = models(load(toml(f"[[models]]\n{SCRIPTED}[[models]]\n{table}"))).all
    assert type(first).__name__ == "SupervisedModel"
    assert type(second).__name__ == "FallbackModel"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('name = "b"', "missing required field `engine`"),
        ('engine = "scripted"', "missing required field `name`"),
        ('name = []\nengine = "scripted"', "$.name"),
        ('name = ""\nengine = "scripted"', "$.name"),
        ('name = "b"\nengine = "s3cret"', "$.engine"),
        ('name = "b"\nengine = "scripted"\nformat = 3', "$.format"),
        ('name = "a"\nengine = "scripted"', "has the name 'a' of models[0]"),
        ('name = "b"\nengine = "scripted"\nfallback = ["x"]', "must name other models, not 'x'"),
        ('name = "b"\nengine = "scripted"\nfallback = ["b"]', "must name other models, not 'b'"),
    ],
)
def test_an_invalid_table_is_refused_without_its_values(
    toml: Any, table: str, reason: str, refusal: Any
) -> None:
    file = toml(f"[[models]]\n{SCRIPTED}[[models]]\n{table}")
    sentence = refusal(file=file)
    assert "models[1]" in sentence
    assert reason in sentence
    assert "s3cret" not in sentence


@pytest.mark.parametrize("setting", ['model = "x"', 'engine = "vllm"', 'format = "harmony"'])
def test_the_settings_of_a_single_model_are_refused_beside_tables(
    toml: Any, setting: str, refusal: Any
) -> None:
    sentence = refusal(file=toml(f"{setting}\n[[models]]\n{SCRIPTED}"))
    assert setting.partition(" ")[0] in sentence
    assert "[[models]]" in sentence


def test_no_variable_can_set_a_model(refusal: Any) -> None:
    assert "is not a setting" in refusal(environ={"ANTIPHON_MODELS": "[]"})


def test_an_engine_of_ones_own_gets_its_options_decoded(toml: Any, folder: Path) -> None:
    table = 'name = "m"\nengine = "engines_of_a_team:Mine"\nurl = "http://x"\n'
    [model] = build_models(load(toml(f"[[models]]\n{table}")))
    own: Any = model._model
    assert (own.names, own.options.url, own.options.timeout_s) == (("m",), "http://x", 5.0)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('name = "m"\nengine = "scripted"\nspeed = "s3cret"', "unknown field `speed`"),
        ('name = "m"\nengine = "scripted"\nslots = "s3cret"', "$.slots"),
        ('name = "m"\nengine = "vllm"', "missing required field `model`"),
        ('name = "m"\nengine = "no_such_module:Mine"', "cannot be loaded"),
        ('name = "m"\nengine = "engines_of_a_team:Mine"', "missing required field `url`"),
        ('name = "m"\nengine = "engines_of_a_team:Mine"\nkey = "s3cret"', "unknown field `key`"),
        ('name = "m"\nengine = "engines_of_a_team:Neither"', "neither an Engine nor a Model"),
    ],
)
def test_options_that_an_engine_does_not_accept_are_refused_without_their_values(
    toml: Any, folder: Path, table: str, reason: str
) -> None:
    with pytest.raises(SettingsError, match="The model 'm' is invalid") as refused:
        build_models(load(toml(f"[[models]]\n{table}")))
    assert reason in str(refused.value)
    assert "s3cret" not in str(refused.value)
