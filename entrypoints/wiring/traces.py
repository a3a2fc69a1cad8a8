"""What a trace says of the server: its versions, and the settings that change what a model does."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from typing import Any

from antiphon.application.telemetry.run_trace import TraceLimits
from antiphon.entrypoints.settings import Settings

PACKAGES = ("antiphon", "vllm", "transformers", "openai-harmony", "litestar")

SHOWN = (
    "engine",
    "format",
    "strict",
    "response_s",
    "first_token_s",
    "between_tokens_s",
    "keep_traces",
    "keep_trace_bytes",
)
"""Settings in every bundle. None of them can hold a secret."""


def trace_limits(settings: Settings) -> TraceLimits:
    return TraceLimits(keep=settings.keep_traces, max_bytes=settings.keep_trace_bytes)


def server_facts(settings: Settings) -> Callable[[], Mapping[str, Any]]:
    """Return what tells the versions and the settings."""

    @cache
    def facts() -> Mapping[str, Any]:
        return {
            "versions": {"python": platform.python_version(), **_versions()},
            "settings": {
                **{name: getattr(settings, name) for name in SHOWN},
                "tools.max_turns": settings.tools.max_turns,
                "tools.call_s": settings.tools.call_s,
                "tools.call_bytes": settings.tools.call_bytes,
            },
        }

    return facts


def _versions() -> Mapping[str, str]:
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed
