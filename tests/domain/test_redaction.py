"""What logs and bundles show of a request: no secret, no file."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.domain.access.redaction import (
    without_secrets,
    without_secrets_and_files,
    without_url_secrets,
)

PIXELS = "A" * 1000


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"input": "hi"}, {"input": "hi"}),
        (
            {"tools": [{"type": "mcp", "authorization": "hush", "headers": {"k": "hush"}}]},
            {"tools": [{"type": "mcp", "headers": {"k": "<redacted>"}}]},
        ),
        (
            [{"type": "input_image", "image_url": f"data:image/png;base64,{PIXELS}"}],
            [{"type": "input_image", "image_url": "<image/png, 1000 characters>"}],
        ),
        ({"file_data": f"data:;base64,{PIXELS}"}, {"file_data": "<text/plain, 1000 characters>"}),
        ({"encrypted_content": "sealed"}, {"encrypted_content": "<redacted>"}),
        ({"encrypted_content": None}, {"encrypted_content": None}),
        ("data: no URL", "data: no URL"),
        (
            {"type": "base64", "media_type": "image/png", "data": PIXELS},
            {"type": "base64", "media_type": "image/png", "data": "<image/png, 1000 characters>"},
        ),
        (
            {"type": "redacted_thinking", "data": "sealed"},
            {"type": "redacted_thinking", "data": "<sealed, 6 characters>"},
        ),
        (
            {"type": "thinking", "thinking": "hm", "signature": "sealed"},
            {"type": "thinking", "thinking": "hm", "signature": "<redacted>"},
        ),
        (
            {"mcp_servers": [{"name": "n", "authorization_token": "hush"}]},
            {"mcp_servers": [{"name": "n", "authorization_token": "<redacted>"}]},
        ),
        ({"type": [], "data": "x"}, {"type": [], "data": "x"}),
    ],
)
def test_secrets_and_files_are_not_shown(value: Any, shown: Any) -> None:
    assert without_secrets_and_files(value) == shown


def test_a_bundle_keeps_files() -> None:
    url = f"data:image/png;base64,{PIXELS}"
    assert without_secrets({"image_url": url}) == {"image_url": url}


URLS = (
    "http://me:CANARY@h/",
    "http://CANARY@h",
    "http://me:p@CANARY@h/",
    "http://me:CANARY/x@h/a",
    "http://me:a?CANARY@h/",
    "http://me:a#CANARY@h/",
    "http://h/?token=CANARY",
    "http://h/?CANARY",
    "http://h/?a=1&CANARY",
    "http://h/?a=1;b=CANARY",
    "http://h/?a=b'CANARY",
    "http://h/#access_token=CANARY",
    "http://h/#CANARY",
    "HTTP://me:CANARY@h",
    "//me:CANARY@h",
    "http:/me:CANARY@h/",
    "http:///me:CANARY@h/",
    "http:\\\\me:CANARY@h/",
    "redis://:CANARY@h/0",
    "postgresql+psycopg://u:CANARY@h/d",
)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("text", ["{}", "Not reached: {}.", '{{"url": "{}"}}', "<{}>", "a\n{}\nb"])
def test_no_secret_of_a_url_is_shown(url: str, text: str) -> None:
    assert "CANARY" not in without_url_secrets(text.format(url))


@pytest.mark.parametrize("url", [*URLS, "http://h/?a=<CANARY", 'http://h/?a="CANARY'])
def test_no_secret_of_a_field_with_a_url_is_shown(url: str) -> None:
    assert "CANARY" not in without_secrets_and_files({"image_url": url})["image_url"]


@pytest.mark.parametrize(
    "text",
    [
        "https://a.example/@user/b",
        "http://h:80/a@b",
        "a // comment: x",
        "C:\\Users\\me",
        "1/2 and 3//4",
        "See https://a.example/b.",
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert without_url_secrets(text) == text
