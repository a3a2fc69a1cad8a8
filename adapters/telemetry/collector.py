"""A client of an OpenTelemetry collector: it sends exports over OTLP/HTTP (OTLP 1.9, "OTLP/HTTP").

It reads the variables OTEL_EXPORTER_OTLP_… of the OpenTelemetry specification ("OTLP Exporter"),
those for traces first. It is used by one thread.
"""

from __future__ import annotations

import gzip
import logging
import os
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Mapping

import httpx
from opentelemetry.util.re import parse_env_headers

from antiphon.domain.errors import SettingsError

logger = logging.getLogger("antiphon.traces")

EXPORT_S = 5.0
"""How long an export may take with its retries; then it is given up."""
FIRST_WAIT_S = 0.5
"""The wait before the first retry. Each further one is twice as long."""
RETRIED = frozenset({429, 502, 503, 504})
"""The statuses after which OTLP lets a client try again."""

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes] | None] = {
    "none": None,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}


class Collector:
    """The collector at `url`. That it takes no traces is logged once, until it takes some again."""

    def __init__(self, url: str) -> None:
        self._url = url
        headers = {**parse_env_headers(_variable("HEADERS"), liberal=True)}
        headers["content-type"] = "application/x-protobuf"
        compression = _variable("COMPRESSION").strip().lower() or "none"
        if compression not in COMPRESSIONS:
            raise SettingsError(
                f"OTEL_EXPORTER_OTLP_COMPRESSION is {compression!r}. "
                f"It can be {', '.join(COMPRESSIONS)}."
            )
        self._compress = COMPRESSIONS[compression]
        if self._compress is not None:
            headers["content-encoding"] = compression
        self._client = httpx.Client(headers=headers, timeout=EXPORT_S, verify=_tls_of_variables())
        self._is_failing = False

    def send(self, request: bytes, *, give_up: threading.Event) -> None:
        """Send an export; while it fails, try again until `give_up` is set or the time is over."""
        content = request if self._compress is None else self._compress(request)
        deadline, wait = time.monotonic() + EXPORT_S, FIRST_WAIT_S
        while True:
            problem, may_retry, asked_wait = self._try_to_send(content)
            if not problem:
                break
            pause = max(wait, asked_wait)
            if not may_retry or time.monotonic() + pause > deadline or give_up.wait(pause):
                break
            wait *= 2
        self._log(problem)

    def close(self) -> None:
        self._client.close()

    def _try_to_send(self, content: bytes) -> tuple[str, bool, float]:
        """Return what went wrong or "", whether to try again, and the wait that was asked for."""
        try:
            answer = self._client.post(self._url, content=content)
        except httpx.TransportError as error:
            return repr(error), True, 0.0
        if answer.is_success:
            return "", False, 0.0
        asked_wait = answer.headers.get("retry-after", "")
        seconds = float(asked_wait) if asked_wait.isdigit() else 0.0
        return f"status {answer.status_code}", answer.status_code in RETRIED, seconds

    def _log(self, problem: str) -> None:
        if problem and not self._is_failing:
            logger.warning("the collector %s takes no traces: %s", self._url, problem)
        elif self._is_failing and not problem:
            logger.info("the collector %s takes traces again", self._url)
        self._is_failing = bool(problem)


def _variable(name: str) -> str:
    general = os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or general


def _tls_of_variables() -> ssl.SSLContext | bool:
    """Return how the collector is known, and how it knows us."""
    authority, certificate = _variable("CERTIFICATE"), _variable("CLIENT_CERTIFICATE")
    if not authority and not certificate:
        return True
    used = "CERTIFICATE"
    try:
        context = ssl.create_default_context(cafile=authority or None)
        used = "CLIENT_CERTIFICATE"
        if certificate:
            context.load_cert_chain(certificate, _variable("CLIENT_KEY") or None)
    except OSError as error:  # SSLError is one
        raise SettingsError(f"OTEL_EXPORTER_OTLP_{used} cannot be used: {error}") from error
    return context
