"""The process that workers are forked from. It loads once what all of them need, and shares it.

It has one thread, no connection, and no model, so nothing is lost in a fork. Linux only: elsewhere
a worker would not notice its end.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker

from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.workers.child import SPAWN, StartContext

PRELOAD = "antiphon.entrypoints.workers.preload"
PRELOAD_HARMONY = "antiphon.entrypoints.workers.preload_harmony"
HARMONY_MODELS = ("harmony", "gpt-oss")
"""What the names of formats and models for Harmony contain."""

MAX_TEMPORARY_FOLDER_BYTES = 70
"""The path of a socket may have 107 bytes, and Python adds 32."""


def start_context(settings: Settings) -> StartContext:
    """Return how workers are started: forked from a process of their own, or anew."""
    if not _can_fork():
        return SPAWN
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(modules_for(settings))
    # It lets signals through when it starts, which are blocked later.
    resource_tracker.ensure_running()
    return context


def modules_for(settings: Settings) -> list[str]:
    """Return what is loaded before workers are forked, in this order: the last one freezes it."""
    uses_harmony = any(part in name for part in HARMONY_MODELS for name in _names_of(settings))
    return [*([PRELOAD_HARMONY] if uses_harmony else ()), PRELOAD]


def _can_fork() -> bool:
    # Before Python 3.11.1, other users of the machine could have a fork server run their code
    # (CVE-2022-42919). Its socket is in the folder for temporary files.
    is_safe = sys.platform == "linux" and sys.version_info >= (3, 11, 1)
    return is_safe and len(os.fsencode(tempfile.gettempdir())) <= MAX_TEMPORARY_FOLDER_BYTES


def _names_of(settings: Settings) -> Iterator[str]:
    """Return the names by which a model for Harmony is known, one of the scripted models too."""
    if not settings.models and settings.model is None:
        yield "scripted-harmony"
    yield settings.format
    yield settings.model or ""
    for table in settings.models:
        yield from (table.format, *table.name, str(table.options.get("model", "")))
