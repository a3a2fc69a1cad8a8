"""The operator's tool servers: errors in their settings are reported before the server starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import McpServer, Settings
from antiphon.entrypoints.wiring.tools import tool_servers, tool_substitutions

ROOT = Path(__file__).parents[3]
FILES: dict[str, Any] = {"label": "files", "command": ("true", "s3cret")}


def refusal(*servers: dict[str, Any], tool: tuple[str, ...] = ()) -> str:
    tables = tuple(McpServer(**each) for each in servers)
    with pytest.raises(SettingsError) as refused:
        tool_servers(Settings(tool=tool, mcp_servers=tables))
    return str(refused.value)


@pytest.mark.parametrize(
    ("servers", "tool", "error"),
    [
        ([FILES, FILES], (), "Two tool servers have the label 'files'."),
        ([FILES], ("files=examples.tools:Lengths",), "Two tool servers have the label 'files'."),
        ([{**FILES, "command": ("no-such-program", "s3cret")}], (), "no program 'no-such-program'"),
        ([{**FILES, "env": {"PATH": "/s3cret"}}], (), "no program 'true'"),
        ([{"label": "w", "url": "http://user:s3cret@host/"}], (), "'w' cannot be called"),
        ([], ("no_such_package:Tools",), "'no_such_package:Tools' cannot be loaded"),
        ([], ("examples.tools:Nothing",), "'examples.tools:Nothing' cannot be loaded"),
        ([], ("examples.tools:converted",), "'examples.tools:converted' cannot be constructed"),
        ([], ("builtins:object",), "'builtins:object' has no label"),
        ([], ("tests.http.odd_tools:UndecidedTools",), "an unknown require_approval: 'sometimes'"),
    ],
)
def test_a_tool_server_that_cannot_be_used_is_refused_in_one_sentence(
    servers: list[dict[str, Any]],
    tool: tuple[str, ...],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    sentence = refusal(*servers, tool=tool)
    assert error in sentence
    assert "s3cret" not in sentence


@pytest.mark.parametrize(
    ("stand_in", "error"),
    [
        (("web_search=browser",), "stand_in names 'browser', but no tool server has that label."),
        (("web_search=mine", "web_search=mine"), "stand_in names two servers for 'web_search'."),
    ],
)
def test_a_hosted_tool_is_replaced_by_one_known_server(
    stand_in: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    settings = Settings(tool=("mine=examples.tools:Lengths",), stand_in=stand_in)
    with pytest.raises(SettingsError) as refused:
        tool_substitutions(settings, tool_servers(settings))
    assert str(refused.value) == error
