"""The socket that the server listens on."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings

MAX_UNSENT_BYTES = 128 * 1024
"""Bytes that the kernel keeps for a client that reads slowly. Its default is megabytes, which only
grow with what a client reads: this bounds what is written and not sent."""


def bind(settings: Settings) -> socket.socket:
    """Return the socket, which does not listen yet. Raises: SettingsError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with suppress(OSError, AttributeError):  # not on every system; connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
    try:
        # Bind now, to fail early. uvicorn listens later, so that nobody connects before we serve.
        listener.bind((settings.host, settings.port))
    except OSError as exc:
        listener.close()
        raise SettingsError(
            f"Cannot listen on {settings.host} port {settings.port}: {_explain_bind_error(exc)}"
        ) from None
    return listener


def _explain_bind_error(exc: OSError) -> str:
    """Return why the server cannot listen on the address, and what to change."""
    if exc.errno == errno.EADDRNOTAVAIL:
        return (
            "this machine does not have that address. Choose another with --host: 127.0.0.1 for "
            "this machine only, 0.0.0.0 for the network."
        )
    if isinstance(exc, socket.gaierror):
        return f"{exc.strerror}. Choose another with --host."
    if exc.errno == errno.EACCES:
        return "only root may listen there. Choose a port above 1023 with --port."
    return f"{exc.strerror}. Choose another with --port."
