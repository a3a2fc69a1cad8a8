"""What logs and bundles show of a request: no secret, no file."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.domain.access.redaction import without_secrets, without_secrets_and_files

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
    ],
)
def test_secrets_and_files_are_not_shown(value: Any, shown: Any) -> None:
    assert without_secrets_and_files(value) == shown


def test_a_bundle_keeps_files() -> None:
    url = f"data:image/png;base64,{PIXELS}"
    assert without_secrets({"image_url": url}) == {"image_url": url}
