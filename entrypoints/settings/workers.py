"""What a server with several workers cannot have, since one process keeps it for itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.options import is_own_class

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
    (
        lambda settings: (
            (settings.code_interpreter or settings.shell) and not is_own_class(settings.sandboxes)
        ),
        "the containers of code_interpreter and shell belong to one process: set workers to 1, or "
        "sandboxes to a class of your own whose containers all processes reach.",
    ),
    (
        lambda settings: settings.advertise_url is not None,
        "the address of advertise_url belongs to one process, which has containers; all workers "
        "share one port: leave it out, or set workers to 1.",
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
