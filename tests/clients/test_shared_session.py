"""One session of several clients, unmodified: begun by Claude Code, and continued by the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.support.sessions import HEADER, answers_in

from .conftest import INSTALLED, Run, claude_variables

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180)]
Script = Callable[..., str]

NAME = "agents at work"
MODEL = "scripted-chat"
CODEX = """
model_provider = "antiphon"
[model_providers.antiphon]
name = "Antiphon"
base_url = "{url}"
wire_api = "responses"
http_headers = {{ "x-antiphon-session" = "{name}" }}
"""


def test_what_claude_code_begins_is_continued_by_codex_and_a_chat_client(
    run_node: Run, server: Any, script: Script, tmp_path: Path
) -> None:
    workspace, home = tmp_path / "workspace", tmp_path / "home"
    workspace.mkdir()
    home.mkdir()

    def claude(prompt: str, *options: str, session: str = NAME) -> str:
        return run_node(
            INSTALLED / ".bin" / "claude",
            *("--print", "--dangerously-skip-permissions", "--model", MODEL, *options, prompt),
            cwd=workspace,
            ANTHROPIC_CUSTOM_HEADERS=f"{HEADER}: {session}",
            **claude_variables(home, server.url),
        )

    def codex(prompt: str, *options: str) -> str:
        (home / "config.toml").write_text(CODEX.format(url=server.api, name=NAME))
        return run_node(
            INSTALLED / ".bin" / "codex",
            *("exec", *options, "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "--model", MODEL, prompt),
            cwd=workspace,
            HOME=str(home),
            CODEX_HOME=str(home),
        )

    write = {"command": "echo made > made.txt", "description": "Writes"}
    assert "one" in claude(script({"call": "Bash", "args": write}, {"say": "one"}))
    assert "two" in claude(script([{"think": "Hm."}, {"say": "two"}]), "--continue")
    read = {"call": "exec_command", "args": {"cmd": "cat made.txt"}}
    assert "three" in codex(script(read, {"say": "three"}))
    with OpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        completion = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": script({"say": "four"})}],
            extra_headers={HEADER: f"{NAME}; join"},
        )
    assert completion.choices[0].message.content == "four"
    assert "five" in claude(script({"say": "five"}), "--continue", session=f"{NAME}; join")

    (conversation,) = httpx.get(
        f"{server.api}/conversations", params={"metadata[antiphon_session]": NAME}
    ).json()["data"]
    items = httpx.get(
        f"{server.api}/conversations/{conversation['id']}/items",
        params={"order": "asc", "limit": 100},
    ).json()["data"]
    answers = ["Bash", "one", "two", "exec_command", "three", "four", "five"]
    assert answers_in(items) == answers
