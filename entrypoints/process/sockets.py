"""The sockets at which the workers of a server reach each other.

All workers accept from one port, so a request for a certain worker needs another way. Each worker
that has containers listens on a Unix socket in the folder of the workers, which only the server's
user can open. Its name has the worker's number and its tag as a server.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

SCHEME = "unix:"


class WorkerSockets:
    """The sockets of all workers, of which the one with the tag `tag` is this worker's."""

    def __init__(self, folder: Path, *, number: int, tag: str) -> None:
        self._folder = folder
        self._tag = tag
        self._path = folder / f"{number}-{tag}.relay"

    @contextmanager
    def listening(self) -> Iterator[socket.socket]:
        """Yield this worker's socket, which does not listen yet; remove it after the block."""
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(self._path))
            try:
                yield listener
            finally:
                self._path.unlink(missing_ok=True)

    def others(self) -> Mapping[str, str]:
        """Return the URLs of the other workers by their tags."""
        found = {path.stem.partition("-")[2]: path for path in self._folder.glob("*.relay")}
        return {tag: f"{SCHEME}{path}" for tag, path in found.items() if tag != self._tag}


def remove_socket(folder: Path, number: int) -> None:
    """Remove what a worker that was killed has left."""
    for path in folder.glob(f"{number}-*.relay"):
        path.unlink(missing_ok=True)


def socket_path(url: str) -> str | None:
    """Return the path of the socket in the URL of a worker, or None for another server's.

    >>> socket_path("unix:/tmp/1-a.relay")
    '/tmp/1-a.relay'
    """
    return url.removeprefix(SCHEME) if url.startswith(SCHEME) else None
