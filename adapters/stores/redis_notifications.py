"""News of logs, over one connection for all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from antiphon.adapters.stores.redis_scripts import whole

QUIET_S = 5.0
"""After so long without a word, the connection is asked whether it lives; then it is given up."""

LOOK_S = 1.0
"""How often those who wait look for themselves: a connection may die without a word."""


class RedisNotifications:
    """Subscribes to a channel when somebody waits for it, and leaves it when nobody does.

    When the connection breaks, all who wait are woken: there may be news that it did not bring.
    """

    def __init__(self, connect: Callable[[], AbstractConnection]) -> None:
        self._connect = connect
        self._connection: AbstractConnection | None = None
        self._listening: asyncio.Task[None] | None = None
        # Commands go out in the order in which they were decided.
        self._turn = asyncio.Lock()
        self._waiting: dict[bytes, set[asyncio.Event]] = {}
        self._heard: dict[bytes, asyncio.Event] = {}

    async def wait(
        self, channel: bytes, is_due: Callable[[], Awaitable[bool]], *, limit_s: float
    ) -> None:
        """Return when something was published there, or `is_due`; after `limit_s` at the latest.

        What is published after this was called is not missed. Raises: RedisError, OSError.
        """
        woken = asyncio.Event()
        self._waiting.setdefault(channel, set()).add(woken)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._hear(channel, woken)
                    while not (woken.is_set() or await is_due()):
                        with suppress(TimeoutError):
                            await asyncio.wait_for(woken.wait(), LOOK_S)
        finally:
            self._leave(channel, woken)

    async def aclose(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    def _leave(self, channel: bytes, woken: asyncio.Event) -> None:
        waiting = self._waiting.get(channel, set())
        waiting.discard(woken)
        if not waiting:
            self._waiting.pop(channel, None)

    async def _hear(self, channel: bytes, woken: asyncio.Event) -> None:
        """Return when Redis has confirmed that it will tell, or there may be news already."""
        while not woken.is_set():
            heard = self._heard.get(channel)
            if heard is None:
                heard = self._heard[channel] = asyncio.Event()
                try:
                    await whole(self._send("SUBSCRIBE", channel))
                except BaseException:
                    self._heard.pop(channel, None)
                    heard.set()  # others who wait for the same try for themselves
                    raise
            await heard.wait()
            if self._heard.get(channel) is heard:
                return

    async def _send(self, command: str, channel: bytes) -> None:
        async with self._turn:
            if self._connection is None:
                connection = self._connect()
                await connection.connect()  # type: ignore[no-untyped-call]
                self._connection = connection
                self._listening = asyncio.create_task(self._listen(connection))
            # On one that is broken it would connect again, and hear nothing of the other channels.
            if self._connection.is_connected:
                await self._connection.send_command(command, channel, check_health=False)

    async def _listen(self, connection: AbstractConnection) -> None:
        is_quiet = False
        try:
            while True:
                told = await connection.read_response(timeout=QUIET_S)
                if told is not None:
                    is_quiet = False
                    await self._read(told[0], told[1])
                elif is_quiet or not connection.is_connected:
                    return
                else:
                    is_quiet = True
                    await connection.send_command("PING", check_health=False)
        except (RedisError, OSError):
            pass
        finally:
            self._break_off()
            await connection.disconnect(nowait=True)

    async def _read(self, kind: bytes, channel: bytes) -> None:
        if kind == b"subscribe" and channel in self._heard:
            self._heard[channel].set()
        if kind != b"message":
            return
        waiting = self._waiting.pop(channel, None)
        if waiting:
            for woken in waiting:
                woken.set()
        elif self._heard.pop(channel, None):
            # Every log ends with a message, so that no channel is kept for nothing.
            await self._send("UNSUBSCRIBE", channel)

    def _break_off(self) -> None:
        self._connection = None
        events = [*self._heard.values(), *(one for all_ in self._waiting.values() for one in all_)]
        self._heard.clear()
        self._waiting.clear()
        for event in events:
            event.set()
