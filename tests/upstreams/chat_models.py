"""The settings of models on a scripted Chat Completions server, one for each style."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.upstreams.chat_server import MODEL, ScriptedChatServer
from tests.upstreams.chat_styles import STYLES

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    name: {"think": "tags"} for name, row in STYLES.items() if row.reasoning == "think_tags"
}
"""What the settings have to say about a server, as it does not show."""


def model_name(style: str) -> str:
    return f"chat-{style}"


def model_table(server: ScriptedChatServer, style: str, *names: str, **options: Any) -> str:
    """Return the table of a model on this server; its name is `model_name` if there are none."""
    fields = {
        "name": list(names) or model_name(style),
        "engine": "chat",
        "url": server.url(style),
        "model": MODEL,
        **OPTIONS.get(style, {}),
        **options,
    }
    # What JSON has for a string, a number or a list is TOML as well.
    lines = (f"{key} = {json.dumps(value)}" for key, value in fields.items())
    return "\n".join(["[[models]]", *lines, ""])


def model_tables(server: ScriptedChatServer, styles: Iterable[str] = STYLES) -> str:
    return "\n".join(model_table(server, style) for style in styles)
