"""Notifications of new events, over one connection for all readers of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from antiphon.adapters.stores.redis.scripts import shielded
from antiphon.application.support.tasks import start_shared_task

IDLE_S = 5.0
"""After so long without a message, send a ping; after as long without an answer, disconnect."""

POLL_S = 1.0
"""How often waiting readers poll, because a connection may be lost silently."""


class RedisNotifications:
    """Subscribes to a channel while readers wait for it, and unsubscribes afterwards.

    When the connection is lost, all waiting readers are woken, because they may have missed a
    message.
    """

    def __init__(self, connect: Callable[[], AbstractConnection]) -> None:
        self._connect = connect
        self._connection: AbstractConnection | None = None
        self._listening: asyncio.Task[None] | None = None
        # Keeps commands in order.
        self._send_lock = asyncio.Lock()
        self._waiters: dict[bytes, set[asyncio.Event]] = {}
        # Set once Redis has confirmed the subscription.
        self._subscriptions: dict[bytes, asyncio.Event] = {}

    async def wait(
        self, channel: bytes, is_due: Callable[[], Awaitable[bool]], *, limit_s: float
    ) -> None:
        """Return when a message is published there, `is_due` returns True, or after `limit_s`.

        No message that is published after this call is missed. Raises: RedisError, OSError.
        """
        woken = asyncio.Event()
        self._waiters.setdefault(channel, set()).add(woken)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._subscribe(channel, woken)
                    while not (woken.is_set() or await is_due()):
                        with suppress(TimeoutError):
                            await asyncio.wait_for(woken.wait(), POLL_S)
        finally:
            self._remove(channel, woken)

    async def aclose(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    def _remove(self, channel: bytes, woken: asyncio.Event) -> None:
        waiters = self._waiters.get(channel, set())
        waiters.discard(woken)
        if not waiters:
            self._waiters.pop(channel, None)

    async def _subscribe(self, channel: bytes, woken: asyncio.Event) -> None:
        """Return once Redis has confirmed the subscription, or `woken` is set."""
        while not woken.is_set():
            subscription = self._subscriptions.get(channel)
            if subscription is None:
                subscription = self._subscriptions[channel] = asyncio.Event()
                try:
                    await shielded(self._send("SUBSCRIBE", channel))
                except BaseException:
                    self._subscriptions.pop(channel, None)
                    subscription.set()  # lets other readers of the channel try themselves
                    raise
            await subscription.wait()
            if self._subscriptions.get(channel) is subscription:
                return

    async def _send(self, command: str, channel: bytes) -> None:
        async with self._send_lock:
            if self._connection is None:
                connection = self._connect()
                await connection.connect()  # type: ignore[no-untyped-call]
                self._connection = connection
                self._listening = start_shared_task(self._listen(connection))
            # Sending on a lost connection would reconnect it without the other subscriptions.
            if self._connection.is_connected:
                await self._connection.send_command(command, channel, check_health=False)

    async def _listen(self, connection: AbstractConnection) -> None:
        is_idle = False
        try:
            while True:
                message = await connection.read_response(timeout=IDLE_S)
                if message is not None:
                    is_idle = False
                    await self._on_message(message[0], message[1])
                elif is_idle or not connection.is_connected:
                    return
                else:
                    is_idle = True
                    await connection.send_command("PING", check_health=False)
        except (RedisError, OSError):
            pass
        finally:
            self._on_disconnect()
            await connection.disconnect(nowait=True)

    async def _on_message(self, kind: bytes, channel: bytes) -> None:
        if kind == b"subscribe" and channel in self._subscriptions:
            self._subscriptions[channel].set()
        if kind != b"message":
            return
        waiters = self._waiters.pop(channel, None)
        if waiters:
            for woken in waiters:
                woken.set()
        elif self._subscriptions.pop(channel, None):
            # Every log ends with a message, so no subscription outlives its log.
            await self._send("UNSUBSCRIBE", channel)

    def _on_disconnect(self) -> None:
        self._connection = None
        events = [*self._subscriptions.values()]
        events += [woken for waiters in self._waiters.values() for woken in waiters]
        self._subscriptions.clear()
        self._waiters.clear()
        for event in events:
            event.set()
