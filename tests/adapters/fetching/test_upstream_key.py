"""The key of a model server: where it comes from, and where it never appears."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from antiphon.adapters.models.chat_completions import ChatOptions
from antiphon.adapters.upstreams.client import UpstreamClient
from antiphon.adapters.upstreams.options import UpstreamApiKey, UpstreamOptions
from antiphon.domain.errors import SettingsError

KEY = "sk-first-key"


def test_a_key_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    key = UpstreamApiKey(UpstreamOptions(key_file=str(file)))
    assert key.read() == KEY
    file.write_text("sk-second\n")
    os.utime(file, ns=(1, 1))
    assert key.read() == "sk-second"


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_a_key_file_without_a_key_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match="key_file"):
        UpstreamApiKey(UpstreamOptions(key_file=str(file))).read()


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPSTREAM_KEY", raising=False)
    with pytest.raises(SettingsError, match="UPSTREAM_KEY"):
        UpstreamApiKey(UpstreamOptions(key_env="UPSTREAM_KEY")).read()


def test_secrets_are_taken_out_of_what_a_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    options = UpstreamOptions(key_env="UPSTREAM_KEY", headers={"api-key": "other-secret"})
    client = UpstreamClient("http://127.0.0.1:1/v1", options)
    assert client.redact(f"wrong key {KEY}, other-secret") == "wrong key …, …"


def test_the_options_show_no_secrets() -> None:
    options = ChatOptions(
        url="http://127.0.0.1/v1", headers={"api-key": KEY}, extra_body={"a": KEY}
    )
    assert KEY not in repr(options)


@pytest.mark.parametrize("url", ["http://me:secret@host/v1", "http://host/v1\n", "http://host?a=1"])
def test_the_url_of_a_server_has_no_credentials_and_nothing_odd(url: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"url"):
        msgspec.convert({"url": url}, ChatOptions)
