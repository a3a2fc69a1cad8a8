"""The command line, run in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest

from antiphon.entrypoints.commands.options import option_groups
from antiphon.entrypoints.settings import SETTINGS

MODULE = (sys.executable, "-m", "antiphon.entrypoints.cli")


def antiphon(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")}
    return subprocess.run(
        [*MODULE, *arguments],
        env={**inherited, "COLUMNS": "120", "PYTHONIOENCODING": "utf-8", **variables},
        encoding="utf-8",
        capture_output=True,
        timeout=30,
        check=False,
    )


@pytest.fixture(scope="module")
def serve_help() -> str:
    finished = antiphon("serve", "--help-all", COLUMNS="200")
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout


def test_version_lists_the_installed_versions() -> None:
    finished = antiphon("version")
    lines = finished.stdout.splitlines()
    assert finished.returncode == 0
    assert lines[0] == f"antiphon {metadata.version('antiphon')}"
    assert f"litestar {metadata.version('litestar')}" in lines
    assert antiphon("--version").stdout.splitlines() == lines[:1]


def test_help_names_the_commands() -> None:
    finished = antiphon("--help")
    assert finished.returncode == 0
    assert "serve" in finished.stdout
    assert "version" in finished.stdout


@pytest.mark.parametrize("path", SETTINGS)
def test_help_explains_every_setting(serve_help: str, path: str) -> None:
    setting = SETTINGS[path]
    flat = " ".join(serve_help.replace("│", " ").split())
    assert setting.variable in flat
    if path == "engine_options":  # no option: they go after `--`
        assert "Everything after -- is passed to vLLM" in flat
    else:
        assert ("MODEL" if path == "model" else setting.option) in flat
        assert setting.text in flat
        assert f"[default: {setting.default};" in flat


def test_help_begins_with_the_ten_that_matter_first_and_names_each_once() -> None:
    first, *others = [group["options"] for group in option_groups()]
    assert first[0] == "model"
    assert len(first) == 11  # with the way to all others
    assert {"--host", "--port", "--store", "--config", "--help", "--help-all"} < {*first}
    every = [*first, *chain.from_iterable(others)]
    assert len(every) == len({*every}) == len(SETTINGS) + 3


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_help_is_short_and_says_where_the_rest_is(command: str) -> None:
    finished = antiphon(command, "--help", COLUMNS="100")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert len(finished.stdout.splitlines()) <= 100
    assert {"--host", "--store", "--help-all"} < {*finished.stdout.split()}
    assert "--tools-call-s" not in finished.stdout
    everything = antiphon(command, "--help-all", COLUMNS="100").stdout
    assert "--tools-call-s" in everything
    assert len(everything.splitlines()) > 500


def test_help_has_examples_to_copy(serve_help: str) -> None:
    assert "antiphon serve ./models/gpt-oss-20b -- --tensor-parallel-size 2\n" in "".join(
        line.rstrip() + "\n" for line in serve_help.splitlines()
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve", "--port", "abc"], "--port must be a whole number from 0 to 65535, not 'abc'."),
        (["serve", "--store", "disk"], "--store must be memory, sqlite, sqlite:///FILE,"),
        (["serve", "--engine", "vllm"], "The vllm engine needs a model"),
        (["serve", "--", "--max-model-len", "9"], "Engine options (--max-model-len 9) are for"),
        (["serve", "--config", "no.toml"], "The settings file 'no.toml' does not exist."),
        (["serve", "--prot", "1"], "No such option"),
        (["serve", "--port"], "requires an argument"),
        (["serve", "one", "two"], "unexpected extra argument"),
        (["sevre"], "No such command 'sevre'"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    refused = antiphon(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("antiphon: ")
    assert sentence in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_an_invalid_variable_or_file_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    by_variable = antiphon("serve", ANTIPHON_PORT="x")
    assert by_variable.returncode == 2
    assert by_variable.stderr.startswith("antiphon: ANTIPHON_PORT must be a whole number")
    file = tmp_path / "wrong.toml"
    file.write_text("prot = 1")
    by_file = antiphon("serve", "--config", str(file))
    assert by_file.returncode == 2
    assert by_file.stderr == f"antiphon: prot in {file} is not a setting; did you mean port?\n"


@pytest.mark.parametrize("arguments", [["version"], ["serve", "--help"], ["serve", "--port", "x"]])
def test_help_version_and_wrong_use_load_no_server(arguments: list[str]) -> None:
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            "import atexit, sys\n"
            "heavy = ['litestar', 'vllm', 'apsw', 'uvicorn', 'jinja2']\n"
            "atexit.register(lambda: print('loaded', [m for m in heavy if m in sys.modules]))\n"
            "from antiphon.entrypoints.cli import main\n"
            "main()",
            *arguments,
        ],
        encoding="utf-8",
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert finished.stdout.splitlines()[-1] == "loaded []"
