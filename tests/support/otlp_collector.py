"""A collector of OpenTelemetry traces, in this process: it keeps what it receives."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

DECOMPRESSIONS = {"none": bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}


class Collector:
    """`url` is its endpoint; `bodies` are the exports as they came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []

    @property
    def spans(self) -> list[Any]:
        found = []
        for body in self.bodies:
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    found += scope.spans
        return found

    def named(self, start: str) -> list[Any]:
        return [span for span in self.spans if span.name.startswith(start)]


def attributes_of(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


@contextmanager
def collecting(
    *, hangs: threading.Event | None = None, statuses: Sequence[int] = ()
) -> Iterator[Collector]:
    """Collect inside the block; with `hangs`, answer only when that is set.

    The first answers have these `statuses`, all further ones 200. Clients may try again at once.
    """
    refusals = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            decompress = DECOMPRESSIONS[self.headers.get("content-encoding", "none")]
            body = decompress(body)
            if hangs is not None:
                hangs.wait(60)
            collector.bodies.append(body)
            collector.headers.append({k.lower(): v for k, v in self.headers.items()})
            self.send_response(refusals.pop(0) if refusals else 200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.send_header("retry-after", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield collector
    finally:
        if hangs is not None:
            hangs.set()
        server.shutdown()
        thread.join()
        server.server_close()
