"""Settings that several workers cannot have, since one process keeps their state for itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from antiphon.domain.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.entrypoints.settings.schema import Settings

OF_ONE_PROCESS: Sequence[tuple[Callable[[Settings], bool], str]] = (
    (
        lambda _: sys.platform == "win32",
        "Windows cannot share a port between processes: set workers to 1.",
    ),
    (
        lambda settings: settings.store == "memory",
        "the memory store belongs to one process: set store to sqlite, postgresql://… or "
        "redis://…, or workers to 1.",
    ),
)
"""What settings must not choose with several workers, and what to do."""


def check_workers(settings: Settings) -> None:
    """Raises: SettingsError for what several workers would each have for themselves."""
    if settings.workers == 1:
        return
    for is_chosen, why in OF_ONE_PROCESS:
        if is_chosen(settings):
            raise SettingsError(f"workers is {settings.workers}, but {why}")
