"""Connections to model servers that read only as many answers as requests were sent.

A server may send interim answers (100, 103; RFC 9110, section 15.2) before the answer, and aiohttp
reads them in a loop. Nothing bounds that loop, nor the answers that come without a request.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from aiohttp import ClientPayloadError, TCPConnector
from aiohttp.client_proto import ResponseHandler

MAX_INTERIM_ANSWERS = 16
STATUS_LINE = b"\nHTTP/1."
"""No line of JSON begins so, if an answer comes together with its body."""


class BoundedConnection(ResponseHandler):
    """Closes itself when a server sends more answers to one request than `MAX_INTERIM_ANSWERS`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._answers = 0
        self._has_answer = True
        """Whether the answer itself has begun; a connection without a request waits for none."""

    def set_response_params(self, **params: Any) -> None:
        """Begin to read the answers to the next request."""
        self._answers, self._has_answer = 0, False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        # Before the parser: what fits in one read could keep it busy for 50 ms.
        if not self._has_answer and self._answers + data.count(STATUS_LINE) > MAX_INTERIM_ANSWERS:
            self._refuse()
        else:
            super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        self._answers += 1
        self._has_answer = data[0].code >= 200
        if self._answers > MAX_INTERIM_ANSWERS:
            self._refuse()
        else:
            super().feed_data(data, size)

    def _refuse(self) -> None:
        self.abort()
        self.set_exception(ClientPayloadError("The server sent too many answers."))


class BoundedConnector(TCPConnector):
    """Opens bounded connections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(_open, loop=asyncio.get_running_loop())


def _open(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return BoundedConnection(loop)
