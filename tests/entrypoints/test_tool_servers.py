"""The operator's tool servers in the settings: what is wrong is told before the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import tool_servers, tool_substitutions
from antiphon.entrypoints.settings import McpServer, Settings

ROOT = Path(__file__).parents[2]
FILES: dict[str, Any] = {"label": "files", "command": ("true", "s3cret")}


def refusal(*servers: dict[str, Any], tool: tuple[str, ...] = ()) -> str:
    tables = tuple(McpServer(**each) for each in servers)
    with pytest.raises(SettingsError) as refused:
        tool_servers(Settings(tool=tool, mcp_servers=tables))
    return str(refused.value)


@pytest.mark.parametrize(
    ("servers", "tool", "said"),
    [
        ([FILES, FILES], (), "Two servers of tools are labelled 'files'."),
        ([FILES], ("files=examples.tools:Lengths",), "Two servers of tools are labelled 'files'."),
        ([{**FILES, "command": ("no-such-program", "s3cret")}], (), "no program 'no-such-program'"),
        ([{**FILES, "env": {"PATH": "/s3cret"}}], (), "no program 'true'"),
        ([{"label": "w", "url": "http://user:s3cret@host/"}], (), "'w' cannot be called"),
        ([], ("no_such_package:Tools",), "'no_such_package:Tools' cannot be loaded"),
        ([], ("examples.tools:Nothing",), "'examples.tools:Nothing' cannot be loaded"),
        ([], ("examples.tools:converted",), "'examples.tools:converted' cannot be constructed"),
        ([], ("builtins:object",), "'builtins:object' has no label"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    servers: list[dict[str, Any]],
    tool: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    sentence = refusal(*servers, tool=tool)
    assert said in sentence
    assert "s3cret" not in sentence


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("web_search=browser",), "There is no server of tools labelled 'browser' to stand in."),
        (("web_search=mine", "web_search=mine"), "Two servers stand in for 'web_search'."),
    ],
)
def test_who_stands_in_has_to_be_there(
    asked: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    settings = Settings(tool=("mine=examples.tools:Lengths",), stand_in=asked)
    with pytest.raises(SettingsError) as refused:
        tool_substitutions(settings, tool_servers(settings))
    assert str(refused.value) == said
