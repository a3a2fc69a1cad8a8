"""What a server's process does at its edges: its ports, its signals, its words to the operator."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from antiphon.application.ports import Store
from antiphon.entrypoints import banner
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.listener import Listeners, binding
from antiphon.entrypoints.settings import Settings


class Process:
    """The only process of a server."""

    stop_signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)

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

    async def join(self, store: Store) -> None:
        """Called with the open store, before anything uses it. Raises: StoreError."""

    async def check_store(self, container: Container) -> None:
        """Called when this process owns runs. Raises: SettingsError, StoreError."""

    def announce(self, facts: Mapping[str, Any]) -> None:
        """Tell the operator that the server is ready. `facts` are arguments of `banner.ready`."""
        banner.ready(self._settings, **facts, console=banner.console_of(self._settings))

    def say(self, sentence: str) -> None:
        banner.say(sentence, banner.console_of(self._settings))
