"""Measures how long a server keeps `/livez` waiting: `python livez_prober.py HOST PORT`.

It is a process of its own, so that the load of a test does not delay it. For each line on its
standard input it prints the longest wait since the line before, in seconds, until the input ends.
"""

from __future__ import annotations

import socket
import sys
import threading
import time

PAUSE_S = 0.002
LONGEST_S = 120.0
END = b'"live"}'
"""Of the body of each answer."""


class Prober:
    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._longest = 0.0
        self._lock = threading.Lock()

    def run_forever(self) -> None:
        while True:
            sent_at = time.monotonic()
            try:
                self._ask_until_closed()
            except OSError:
                self._record(time.monotonic() - sent_at)
            time.sleep(PAUSE_S)

    def _ask_until_closed(self) -> None:
        with socket.create_connection(self._address, timeout=LONGEST_S) as connection:
            answer = b"HTTP"
            while answer:
                sent_at = time.monotonic()
                connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
                answer = _read_answer(connection)
                self._record(time.monotonic() - sent_at)
                time.sleep(PAUSE_S)

    def _record(self, wait_s: float) -> None:
        with self._lock:
            self._longest = max(self._longest, wait_s)

    def read(self) -> float:
        """Return the longest wait since the last reading."""
        with self._lock:
            longest, self._longest = self._longest, 0.0
        return longest


def _read_answer(connection: socket.socket) -> bytes:
    """Return a whole answer: what is left of it would be taken for the next one."""
    answer = b""
    while not answer.endswith(END):
        part = connection.recv(65536)
        if not part:
            return b""
        answer += part
    return answer


if __name__ == "__main__":
    prober = Prober(sys.argv[1], int(sys.argv[2]))
    threading.Thread(target=prober.run_forever, daemon=True).start()
    for _line in sys.stdin:
        print(prober.read(), flush=True)
