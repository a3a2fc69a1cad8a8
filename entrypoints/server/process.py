"""The edges of a server's process: its ports, its signals, its words to the operator."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from antiphon.application.ports import RunStore
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.process.exits import STOP_SIGNALS
from antiphon.entrypoints.server import banner
from antiphon.entrypoints.server.listener import Listeners, binding
from antiphon.entrypoints.settings import Settings

GC_THRESHOLDS = (50_000, 5, 400)
"""A collection of the second generation takes up to 40 ms. With 20 in place of 5, it took 110."""
SWITCH_INTERVAL_S = 0.001
"""How long the event loop waits for the interpreter's lock when a thread computes; Python's default
is five times as long. There are few such threads, so switching costs little."""


def tune_interpreter() -> None:
    """Set up this process for an event loop that sends many small frames."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Objects that exist now live as long as the process, so no collection needs to visit them.
    # Responses leave no reference cycles behind, so young objects need no collection every 700
    # allocations: it was an eighth of the cost of a streamed token.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


class Process:
    """The only process of a server."""

    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def listening(self) -> AbstractContextManager[Listeners]:
        """Return the sockets to accept connections from. Raises: SettingsError."""
        return binding(self._settings)

    def is_turn(self, connections: int) -> bool:  # noqa: ARG002
        """Return whether this process, with so many connections, should accept the next one."""
        return True

    def take_signals(self) -> None:
        """A handler for `SIGTERM` is there now."""

    def starting(self, task: str) -> AbstractContextManager[object]:
        """Tell the operator what takes so long, while the block runs."""
        return banner.starting(task, console=banner.console_of(self._settings))

    async def join(self, store: RunStore) -> None:
        """Called with the open store, before anything uses it. Raises: StoreError."""

    async def check_store(self, container: Container) -> None:
        """Called when this process owns runs. Raises: SettingsError, StoreError."""

    def tune(self) -> None:
        """Called when all is loaded, before the first client is accepted."""
        tune_interpreter()

    def announce(self, facts: Mapping[str, Any]) -> None:
        """Tell the operator that the server is ready. `facts` are arguments of `banner.ready`."""
        banner.ready(self._settings, **facts, console=banner.console_of(self._settings))

    def say(self, sentence: str) -> None:
        banner.say(sentence, banner.console_of(self._settings))
