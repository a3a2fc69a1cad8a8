"""`antiphon keys`: its commands, and what a server makes of them."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from dependency_injector import providers

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.resources.keys import hash_of
from antiphon.entrypoints.cli import main
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.server.first_key import first_key_command
from antiphon.entrypoints.settings import Settings

pytestmark = pytest.mark.slow

MODULE = (sys.executable, "-m", "antiphon.entrypoints.cli")
KEY = re.compile(r"ak-[A-Za-z0-9_-]{43}\n")


class Shell:
    """Runs commands in a folder that is also the data folder.

    Only servers get a process of their own: to start one takes longer than all that a command does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        stdout, stderr = io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, self._environment | {"COLUMNS": "120"}, clear=True),
            patch.object(sys, "argv", ["antiphon", *arguments]),
            chdir(self.folder),
            redirect_stdout(stdout),
            redirect_stderr(stderr),
            pytest.raises(SystemExit) as exit_,
        ):
            main()
        code = int(exit_.value.code or 0)
        return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*MODULE, *arguments],
            env=self._environment,
            cwd=self.folder,
            encoding="utf-8",
            stderr=subprocess.PIPE,
        )

    @property
    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")}
        return {**inherited, "ANTIPHON_DATA_DIR": str(self.folder)}

    def create_key(self, *arguments: str) -> tuple[str, str]:
        """Create a key; return it and its id."""
        finished = self("keys", "create", *arguments)
        assert finished.returncode == 0, finished.stderr
        assert KEY.fullmatch(finished.stdout)
        return finished.stdout.strip(), finished.stderr.split()[0]

    def list_keys(self, *arguments: str) -> list[list[str]]:
        finished = self("keys", "list", *arguments)
        assert finished.returncode == 0, finished.stderr
        return [line.split("\t") for line in finished.stdout.splitlines()]

    def refusal(self, *arguments: str) -> str:
        finished = self("keys", *arguments)
        assert (finished.returncode, finished.stdout) == (2, "")
        assert len(finished.stderr.splitlines()) == 1
        return finished.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_key_is_printed_once_and_listed_without_itself(shell: Shell) -> None:
    key, key_id = shell.create_key("--name", "ci", "--tenant", "search")
    [row] = shell.list_keys()
    assert row[:3] == [key_id, "search", "ci"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row[3])
    assert row[4] == "store"
    for file in shell.folder.iterdir():
        content = file.read_bytes()
        assert key.encode() not in content, file
        assert hash_of(key) not in content or file.name.startswith("antiphon.db")


def test_a_key_belongs_to_the_default_tenant_unless_another_is_named(shell: Shell) -> None:
    shell.create_key("--name", "me")
    assert shell.list_keys()[0][1] == "default"


def test_a_revoked_key_is_gone(shell: Shell) -> None:
    (_, first), (_, second) = shell.create_key("--name", "a"), shell.create_key("--name", "b")
    assert shell("keys", "revoke", first).returncode == 0
    assert [row[0] for row in shell.list_keys()] == [second]
    assert "There is no key" in shell.refusal("revoke", first)


def test_a_running_server_accepts_keys_that_are_created_meanwhile(
    shell: Shell, serve: Callable[..., Any]
) -> None:
    """`serve` and `shell` have the same folder."""
    _, first = shell.create_key("--name", "first")
    with serve(store="sqlite", auth="on") as server:
        key, _ = shell.create_key("--name", "second")
        headers = {"authorization": f"Bearer {key}"}
        assert httpx.get(f"{server.api}/models", headers=headers).status_code == 200
        assert shell("keys", "revoke", first).returncode == 0


def test_a_limit_is_created_listed_changed_and_removed(shell: Shell) -> None:
    options = ["--limit", "requests/min=60", "--limit", "tokens/day=1M", "--limit", "runs=4"]
    options += ["--model", "m", "--tool", "mcp", "--host", "*.example.org", "--scope", "read"]
    options += ["--guard", "words"]
    _, key_id = shell.create_key("--name", "a", *options)
    rights = "model=m tool=mcp host=example.org guard=words scope=read"
    limits = "requests/min=60 tokens/day=1000000 runs=4"
    assert shell.list_keys()[0][5] == f"{limits} {rights}"
    changes = ["--limit", "requests/min=10", "--limit", "tokens/day=none", "--scope", "all"]
    changed = shell(
        "keys", "update", key_id, *changes, "--model", "all", "--tier", "flex", "--guard", "all"
    )
    assert changed.returncode == 0, changed.stderr
    assert shell.list_keys()[0][5] == ("requests/min=10 runs=4 tool=mcp host=example.org tier=flex")
    shell("keys", "update", key_id, "--expires", "30d")
    assert "expires=20" in shell.list_keys()[0][5]
    shell("keys", "update", key_id, "--expires", "never", "--limit", "runs=none")
    assert "expires" not in shell.list_keys()[0][5]
    assert "There is no key" in shell.refusal("update", "key_unknown", "--limit", "runs=1")


def test_limits_change_while_a_server_runs_and_their_use_is_shown(
    shell: Shell, serve: Callable[..., Any]
) -> None:
    """`serve` and `shell` have the same folder."""
    key, key_id = shell.create_key("--name", "first", "--limit", "requests/day=1")
    shell.create_key("--name", "without limits")
    body = {"model": "scripted-chat", "input": "hi", "store": False}
    with (
        serve(store="sqlite", auth="on") as server,
        httpx.Client(base_url=server.api, headers={"authorization": f"Bearer {key}"}) as client,
    ):
        assert client.post("/responses", json=body).status_code == 200
        assert client.post("/responses", json=body).status_code == 429
        shell("keys", "update", key_id, "--limit", "requests/day=1k", "--limit", "tokens/day=5k")
        deadline = time.monotonic() + 30
        while client.post("/responses", json=body).status_code == 429:
            assert time.monotonic() < deadline
        shown = shell("keys", "usage", "--key", key_id)
        assert shown.returncode == 0, shown.stderr
        head, requests, tokens = (re.split(r"  +", line) for line in shown.stdout.splitlines())
        assert head == ["KEY", "NAME", "LIMIT", "USED", "OF", "RESETS IN"]
        assert requests[:5] == [key_id, "first", "requests/day", "2", "1,000"]
        assert tokens[2] == "tokens/day"
        assert int(tokens[3]) > 0
        # A key without limits is not shown, with `--key` or without.
        assert len(shell("keys", "usage").stdout.splitlines()) == len(shown.stdout.splitlines())
    assert "There is no key" in shell.refusal("usage", "--key", "key_unknown")


def test_a_key_in_a_file_has_the_same_options(shell: Shell) -> None:
    options = ["--limit", "runs=2", "--host", "example.org", "--expires", "1h"]
    _, key_id = shell.create_key("--name", "a", "--file", "keys.toml", *options)
    in_file = ["--store", "memory", "--keys-file", "keys.toml"]
    [row] = shell.list_keys(*in_file)
    assert row[5].startswith("runs=2 host=example.org expires=")
    error = shell.refusal("update", key_id, "--limit", "runs=1", *in_file)
    assert "is in keys.toml: change its table" in error
    assert "counts inside of the server" in shell.refusal("usage", *in_file)


@pytest.mark.parametrize(
    "options", [("--store", "sqlite"), ("--store", "memory", "--keys-file", "its keys.toml")]
)
def test_a_server_without_keys_prints_a_command_that_creates_a_working_key(
    shell: Shell, options: tuple[str, ...]
) -> None:
    (shell.folder / "its keys.toml").write_text("")
    process = shell.start("serve", "--auth", "on", "--port", "0", *options)
    try:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if line.startswith("antiphon "))
        found = re.search(r"api keys: NONE YET.*`antiphon (.+)`; url: (\S+);", ready)
        assert found is not None, ready
        made = shell(*shlex.split(found[1]))
        assert made.returncode == 0, made.stderr
        headers = {"authorization": f"Bearer {made.stdout.strip()}"}
        assert httpx.get(f"{found[2]}/models", headers=headers).status_code == 200
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_the_printed_command_contains_no_password(tmp_path: Path) -> None:
    settings = Settings(store="postgresql://anna:s3cret@db/kept", auth="on", data_dir=tmp_path)
    container = Container(settings=settings)
    container.store.override(providers.Object(MemoryStore()))
    command = asyncio.run(first_key_command(container))
    assert command == f"antiphon keys create --name me --store URL --data-dir {tmp_path}"


def test_a_key_can_be_created_in_a_file(shell: Shell) -> None:
    key, key_id = shell.create_key("--name", "a", "--tenant", "t", "--file", "keys.toml")
    [entry] = tomllib.loads((shell.folder / "keys.toml").read_text())["keys"]
    assert (entry["id"], entry["tenant"]) == (key_id, "t")
    assert entry["sha256"] == hash_of(key).hex()
    rows = shell.list_keys("--store", "memory", "--keys-file", "keys.toml")
    assert [(row[0], row[4]) for row in rows] == [(key_id, "keys.toml")]
    error = shell.refusal("revoke", key_id, "--store", "memory", "--keys-file", "keys.toml")
    assert "is in keys.toml: remove its table" in error


def test_the_memory_store_refuses_new_keys(shell: Shell) -> None:
    assert "add --file keys.toml" in shell.refusal("create", "--name", "a", "--store", "memory")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create"], "Missing option '--name'"),
        (["create", "--name", ""], "A key's name must be printable"),
        (["create", "--name", "a", "--tenant", "a b"], "A tenant must be up to 64 letters"),
        (["create", "--name", "a", "--store", "disk"], "--store must be memory"),
        (["create", "--name", "a", "--file", "no/keys.toml"], "cannot be written"),
        (["list", "--keys-file", "no.toml"], "The keys file 'no.toml' cannot be used"),
        (["create", "--name", "a", "--limit", "rpm=1"], "NAME is one of: requests/min"),
        (["create", "--name", "a", "--limit", "runs=0"], "a whole number of at least 1"),
        (["create", "--name", "a", "--limit", "runs=1e9"], "a whole number of at least 1"),
        (["create", "--name", "a", "--expires", "soon"], "like 30d or 12h"),
        (["create", "--name", "a", "--host", "https://a.b/c"], "A host is a name"),
        (["create", "--name", "a", "--scope", "admin"], "Invalid value for '--scope'"),
        (["revoke"], "Missing argument 'ID'"),
        (["remove"], "No such command 'remove'"),
    ],
)
def test_wrong_use_is_one_sentence(shell: Shell, arguments: list[str], sentence: str) -> None:
    assert sentence in shell.refusal(*arguments)


def test_help_has_commands_to_copy(shell: Shell) -> None:
    asked = shell("keys", "--help")
    assert asked.returncode == 0
    assert "antiphon keys create --name ci --tenant search" in asked.stdout
    assert "antiphon keys revoke key_" in asked.stdout
    for command in ("create", "update", "usage", "list", "revoke"):
        assert "--data-dir" in shell("keys", command, "--help").stdout
