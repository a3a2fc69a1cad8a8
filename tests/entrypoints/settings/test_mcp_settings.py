"""The settings of the operator's MCP servers, which only a file can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.entrypoints.settings import load

LOCAL = 'label = "files"\ncommand = ["mcp-files", "/srv"]\n'
REMOTE = 'label = "wiki"\nurl = "https://wiki.example/mcp"\n'


def test_mcp_servers_are_tables_in_the_file(toml: Any) -> None:
    options = 'env = {TOKEN = "s3cret"}\ntimeout_s = 5\nallowed_tools = ["read"]\n'
    file = toml(f"[[mcp_servers]]\n{LOCAL}{options}[[mcp_servers]]\n{REMOTE}headers = {{a = 'b'}}")
    local, remote = load(file).mcp_servers
    assert (local.command, local.env, local.timeout_s) == (
        ("mcp-files", "/srv"),
        {"TOKEN": "s3cret"},
        5.0,
    )
    assert (local.allowed_tools, local.require_approval) == (("read",), "never")
    assert (remote.url, remote.headers) == ("https://wiki.example/mcp", {"a": "b"})


def test_no_variable_can_set_an_mcp_server(refusal: Any) -> None:
    for name in ("ANTIPHON_MCP_SERVERS", "ANTIPHON_MCP_SERVERS__COMMAND"):
        assert "is not a setting" in refusal(environ={name: "[]"})


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('label = "x"', "either `command` or `url`"),
        (LOCAL + 'url = "http://a"', "either `command` or `url`"),
        (REMOTE + 'env = {KEY = "s3cret"}', "`env` needs"),
        (LOCAL + 'headers = {key = "s3cret"}', "`headers` needs"),
        (LOCAL + 'env = {KEY = ["s3cret"]}', "$.env"),
        (LOCAL + 'shell = "s3cret"', "unknown field `shell`"),
        ('label = "x"\ncommand = "rm s3cret"', "$.command"),
        ('label = "x"\ncommand = [""]', "$.command"),
        ('label = "a b"\ncommand = ["x"]', "$.label"),
        ('label = "x"\nurl = "file:///s3cret"', "url must be an http(s) URL, such as"),
        ('label = "x"\nurl = "http://user:s3cret@host/"', "url must be an http(s) URL, such as"),
        (REMOTE + 'require_approval = "s3cret"', "require_approval must be always or never."),
        (LOCAL + "timeout_s = 0", "$.timeout_s"),
        (LOCAL + "tenant_authorization = true", "`tenant_authorization` needs a `url`"),
        (
            REMOTE + 'tenant_authorization = true\nheaders = {Authorization = "s3cret"}',
            "the header `authorization` and `tenant_authorization` are two credentials",
        ),
    ],
)
def test_an_invalid_mcp_server_is_refused_without_its_values(
    toml: Any, table: str, reason: str, refusal: Any
) -> None:
    file = toml(f"[[mcp_servers]]\n{REMOTE}[[mcp_servers]]\n{table}")
    sentence = refusal(file=file)
    assert f"mcp_servers[1] in {file} is invalid" in sentence
    assert reason in sentence
    assert "s3cret" not in sentence


def test_mcp_servers_that_are_not_tables_are_refused(toml: Any, refusal: Any) -> None:
    assert "[[mcp_servers]]" in refusal(file=toml('mcp_servers = "s3cret"'))
    assert "[[mcp_servers]]" in refusal(file=toml("[mcp_servers]\nlabel = 'x'"))


def test_settings_do_not_show_the_secrets_of_servers(toml: Any) -> None:
    file = toml(f"[[mcp_servers]]\n{LOCAL}env = {{TOKEN = 's3cret'}}")
    assert "s3cret" not in repr(load(file))


def test_the_mcp_servers_in_the_tools_guide_are_valid(toml: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "tools.md").read_text(encoding="utf-8")
    examples = [block.split("```")[0] for block in page.split("```toml\n")[1:]]
    labels = [
        server.label
        for example in examples
        if example.startswith("[[mcp_servers]]")
        for server in load(toml(example)).mcp_servers
    ]
    assert labels[:2] == ["units", "tickets"]
