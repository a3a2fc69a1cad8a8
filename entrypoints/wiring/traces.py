"""Build what keeps the traces of runs, with the versions and settings of the server."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from typing import Any

from antiphon.adapters.sealing import Sealer
from antiphon.application.ports import TraceStore
from antiphon.application.telemetry.run_trace import KeepTraces, TraceLimits
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


def keep_traces(settings: Settings, store: TraceStore, sealer: Sealer) -> KeepTraces:
    limits = TraceLimits(keep=settings.keep_traces, max_bytes=settings.keep_trace_bytes)
    facts = _server_facts(settings)
    return KeepTraces(store, sealer.seal, sealer.unseal, limits=limits, server=facts)


def _server_facts(settings: Settings) -> Callable[[], Mapping[str, Any]]:
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
