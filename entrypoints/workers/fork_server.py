"""The process that workers are forked from. It loads once what all of them need, and shares it.

It has one thread, no connection, and no model, so nothing is lost in a fork. Linux only: elsewhere
a worker would not notice its end.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker

from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.workers.child import SPAWN, StartContext

PRELOAD = "antiphon.entrypoints.workers.preload"
PRELOAD_HARMONY = "antiphon.entrypoints.workers.preload_harmony"
HARMONY_MODELS = ("harmony", "gpt-oss")
"""What the names of formats and models for Harmony contain."""


def fork_context(settings: Settings) -> StartContext:
    """Return how workers are started: forked from a process of their own, or anew."""
    if sys.platform != "linux":
        return SPAWN
    context = multiprocessing.get_context("forkserver")
    # In this order: the second one freezes what there is.
    uses_harmony = any(part in name for part in HARMONY_MODELS for name in _names_of(settings))
    context.set_forkserver_preload([*([PRELOAD_HARMONY] if uses_harmony else ()), PRELOAD])
    # It lets signals through when it starts, which are blocked later.
    resource_tracker.ensure_running()
    return context


def _names_of(settings: Settings) -> Iterator[str]:
    """Return the names by which a model for Harmony is known, one of the scripted models too."""
    if not settings.models and settings.model is None:
        yield "scripted-harmony"
    yield settings.format
    yield settings.model or ""
    for table in settings.models:
        yield from (table.format, *table.name, str(table.options.get("model", "")))
