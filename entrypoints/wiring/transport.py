"""The limits of connections and bodies that depend on the machine and on the models."""

from __future__ import annotations

import logging
import sys

from antiphon.application.model.models import Models
from antiphon.application.ports import Model
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.domain.errors import EngineDead, SettingsError
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.request_log import RefusalLog
from antiphon.entrypoints.http.wire.bodies import BodyLimits
from antiphon.entrypoints.http.wire.connections import ConnectionLimits, Connections
from antiphon.entrypoints.http.wire.dialects import DIALECTS
from antiphon.entrypoints.http.wire.dispatch import Dispatcher
from antiphon.entrypoints.http.wire.frame_queue import FrameQueue
from antiphon.entrypoints.http.wire.protocol import Transport
from antiphon.entrypoints.http.wire.tls import Certificate
from antiphon.entrypoints.settings import Settings

if sys.platform != "win32":
    import resource

logger = logging.getLogger("antiphon.server")

TEXT_BODY_BYTES = 8 * 1024 * 1024
"""A conversation of a million tokens has about 5 MB."""
IMAGE_BODY_BYTES = 32 * 1024 * 1024

MAX_CONNECTIONS = 10_000
MAX_OPEN_FILES = 65_536
"""Processes that the server starts have the same limit, and some of them try to close them all."""
MIN_RESERVED_FILES = 128
RESERVED_SHARE = 4
"""One file in this many, and no fewer than the above, are for the store, tools, and sandboxes."""
MAX_ADMIN_CONNECTIONS = 64
MAX_ARRIVALS = 4096
ARRIVALS_SHARE = 16
"""One file in this many, of those that are reserved, may be of a connection that is not served."""


def http_options(settings: Settings, models: Models, bytes_in_work: BytesInWork) -> HttpOptions:
    return HttpOptions(
        limits=BodyLimits(
            max_bytes=max_body_bytes(settings, models),
            bytes_in_work=bytes_in_work,
            max_depth=settings.max_depth,
            max_nodes=settings.max_json_nodes,
        ),
        dialect=DIALECTS[settings.dialect],
        strict=settings.strict,
        strict_unknown_fields=settings.refuses_unknown_fields,
        log_requests=settings.log_requests,
        error_stacks=settings.error_stacks,
        websocket_s=settings.websocket_s,
        session_headers=settings.session_header,
    )


def max_body_bytes(settings: Settings, models: Models) -> int:
    """Return the limit of a request body. A model that has not started yet may read images."""
    if settings.max_body_bytes is not None:
        return settings.max_body_bytes
    return IMAGE_BODY_BYTES if any(map(_may_read_images, models.all)) else TEXT_BODY_BYTES


def _may_read_images(model: Model) -> bool:
    try:
        return model.reads_images
    except EngineDead:
        return True


def transport(settings: Settings, bytes_in_work: BytesInWork) -> Transport:
    limits = ConnectionLimits(
        max_connections=_max_connections(settings.max_connections),
        max_arrivals=min(MAX_ARRIVALS, _open_files_limit() // ARRIVALS_SHARE),
        max_per_address=settings.max_connections_per_address,
        write_stall_s=settings.write_stall_s,
    )
    return _transport(settings, limits, bytes_in_work)


def admin_transport(settings: Settings) -> Transport:
    """Return that of the second port, whose few clients the API's cannot push out."""
    limits = ConnectionLimits(
        max_connections=MAX_ADMIN_CONNECTIONS, write_stall_s=settings.write_stall_s
    )
    return _transport(settings, limits, BytesInWork())


def _transport(
    settings: Settings, limits: ConnectionLimits, bytes_in_work: BytesInWork
) -> Transport:
    return Transport(
        arrival_s=settings.arrival_s,
        connections=Connections(limits),
        bytes_in_work=bytes_in_work,
        frames=FrameQueue(),
        dispatcher=Dispatcher(),
        refusals=RefusalLog(),
    )


def certificate(settings: Settings) -> Certificate | None:
    """Return the certificate to serve HTTPS with. Raises: SettingsError."""
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise SettingsError("--tls-cert and --tls-key belong together: set both, or neither.")
    return Certificate(settings.tls_cert, key=settings.tls_key)


def raise_open_files_limit() -> None:
    """Let this process open as many files as it may. The usual soft limit, 1024, is for select."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as exc:  # macOS: the kernel has a lower limit
        logger.debug("the limit of open files stays %d: %s", soft, exc)


def _max_connections(chosen: int | None) -> int:
    """Return how many connections there may be: as chosen, or as fit the limit of open files.

    Beyond that limit, the kernel refuses to accept connections, and clients wait in silence.
    """
    files = _open_files_limit()
    fitting = fitting_connections(files)
    if chosen is None:
        return min(MAX_CONNECTIONS, fitting)
    if chosen > fitting:
        logger.warning(
            "max_connections is %d, but this process may open only %d files: raise `ulimit -n`",
            chosen,
            files,
        )
    return chosen


def fitting_connections(files: int) -> int:
    """Return how many connections there may be if the process may open this many files."""
    return max(1, files - max(MIN_RESERVED_FILES, files // RESERVED_SHARE))


def _open_files_limit() -> int:
    if sys.platform == "win32":
        return MAX_OPEN_FILES
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_OPEN_FILES if files == resource.RLIM_INFINITY else files
