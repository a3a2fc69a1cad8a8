"""The socket that the server listens on, and how it accepts connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from msgspec import Struct

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.http.wire.arrivals import Arrivals
from antiphon.entrypoints.settings import Settings

logger = logging.getLogger("antiphon.server")

MAX_UNSENT_BYTES = 128 * 1024
"""Bytes that the kernel keeps for a client that reads slowly. Its default is megabytes, which only
grow with what a client reads: this bounds what is written and not sent."""

ACCEPTED = 256
"""Connections that are accepted in one iteration of the event loop. Each takes about 0.02 ms."""
SERVED = 8
"""Connections that get a protocol in one iteration of the event loop. Each takes about 0.1 ms, and
its request as long again. Nobody should be read much earlier than answered."""
YIELD_S = 0.002
"""How long a process whose turn it is not leaves a connection to the others."""
ACCEPT_RETRY_S = 1.0
"""Seconds to wait when no file can be opened anymore."""
OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listeners(Struct, frozen=True, kw_only=True):
    """The sockets of a server. They are its port, and the second one if it has one.

    Several workers may share them: then each connection goes to the worker that is free first.
    """

    api: socket.socket
    admin: socket.socket | None = None
    are_shared: bool = False

    def close(self) -> None:
        """Close this process's copies. The port is free when no process has a copy anymore."""
        self.api.close()
        if self.admin is not None:
            self.admin.close()


@contextmanager
def binding(settings: Settings) -> Iterator[Listeners]:
    """Bind the server's ports, and close them after the block. Raises: SettingsError."""
    with ExitStack() as stack:
        api = stack.enter_context(bind(settings.host, settings.port))
        admin = bind_admin(settings)
        if admin is not None:
            stack.enter_context(admin)
        yield Listeners(api=api, admin=admin, are_shared=settings.workers > 1)


def bind_admin(settings: Settings) -> socket.socket | None:
    """Return the socket of the second port, if the settings have one. Raises: SettingsError."""
    if settings.admin_port is None:
        return None
    return bind(settings.admin_host, settings.admin_port, "--admin-")


def bind(host: str, port: int, prefix: str = "--") -> socket.socket:
    """Return the socket, which does not listen yet. Raises: SettingsError.

    `prefix` is that of the options for the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with suppress(OSError, AttributeError):  # not on every system; connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
    try:
        # Bind now, to fail early. uvicorn listens later, so that nobody connects before we serve.
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise SettingsError(
            f"Cannot listen on {host} port {port}: {_explain_bind_error(exc, prefix)}"
        ) from None
    return listener


def _explain_bind_error(exc: OSError, prefix: str) -> str:
    """Return why the server cannot listen on the address, and what to change."""
    if exc.errno == errno.EADDRNOTAVAIL:
        return (
            f"this machine does not have that address. Choose another with {prefix}host: 127.0.0.1 "
            "for this machine only, 0.0.0.0 for the network."
        )
    if isinstance(exc, socket.gaierror):
        return f"{exc.strerror}. Choose another with {prefix}host."
    if exc.errno == errno.EACCES:
        return f"only root may listen there. Choose a port above 1023 with {prefix}port."
    return f"{exc.strerror}. Choose another with {prefix}port."


class Acceptor:
    """Accepts the connections of a listener, and serves a few in each iteration of the event loop.

    An event loop's own server serves all that wait, and everything else waits meanwhile. If other
    processes accept from the same listener, `is_turn` says whether one of them should have the next
    connection. At most `portion` connections are accepted at once, and at most `max_waiting` are
    accepted and not served; the others wait in the kernel. Has the methods of `asyncio.Server` that
    uvicorn calls.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        backlog: int,
        max_waiting: int,
        portion: int = ACCEPTED,
        is_turn: Callable[[], bool] = lambda: True,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._max_waiting = max_waiting
        self._portion = portion
        self._is_turn = is_turn
        self._arrivals = Arrivals()
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[object]] = set()
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(backlog)
        self._loop.add_reader(listener, self._accept_in_turn)

    def close(self) -> None:
        """Accept no more connections, and close those that are not served yet."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        for connection in self._arrivals.take(len(self._arrivals)):
            connection.close()

    async def wait_closed(self) -> None:
        """Wait for the connections that were accepted last to have their protocols."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _accept_in_turn(self) -> None:
        if self._is_turn():
            self._accept_portion()
        else:
            self._pause(YIELD_S, then=self._accept_portion)

    def _accept_portion(self) -> None:
        accepted: list[socket.socket] = []
        waiting = len(self._arrivals) if self._is_scheduled else 0
        for _ in range(min(self._portion, self._max_waiting - waiting)):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionAbortedError:  # by the client, while it waited
                continue
            except OSError as exc:
                if exc.errno not in OUT_OF_FILES:
                    raise
                logger.error(  # noqa: TRY400 - the reason says it all
                    "cannot accept connections for %g s: %s", ACCEPT_RETRY_S, exc
                )
                self._pause(ACCEPT_RETRY_S)
                break
            accepted.append(connection)
        if len(accepted) == 1 and not self._is_scheduled:  # nobody else waits for a turn
            self._serve(accepted[0])
            return
        for connection in accepted:
            self._arrivals.add(connection)
        if not self._is_scheduled:
            self._serve_portion()

    def _serve(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _serve_portion(self) -> None:
        for connection in self._arrivals.take(SERVED):
            self._serve(connection)
        self._is_scheduled = len(self._arrivals) > 0
        if self._is_scheduled:
            self._loop.call_soon(self._serve_portion)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as exc:
            logger.debug("a connection was lost before it was ready: %s", exc)
            connection.close()

    def _pause(self, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        # The listener stays readable, so without a pause this would be called without end.
        def resume() -> None:
            self._loop.add_reader(self._listener, self._accept_in_turn)
            then()

        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(seconds, resume)
