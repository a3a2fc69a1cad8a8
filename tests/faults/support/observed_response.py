"""What clients of durable runs saw, and whether it can be true of one log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec
from tests.faults.support.replicas import frames_of, sequence_number_of

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def client(*, limit_s: float = 20) -> httpx.Client:
    """Return a client that reads no certificates: that takes longer than most requests."""
    return httpx.Client(timeout=limit_s, verify=False)


class ObservedResponse:
    """A response and every frame that was shown of it, by any server, to any reader."""

    def __init__(self, response_id: str) -> None:
        self.id = response_id
        self.frames: dict[int, bytes] = {}
        self.over_at: float | None = None

    def see(self, frames: dict[int, bytes]) -> None:
        """Add what a reader saw: no number may ever have two contents."""
        for number, frame in frames.items():
            before = self.frames.setdefault(number, frame)
            assert before == frame, f"{self.id}: event {number} was {before!r}, then {frame!r}"

    @property
    def last(self) -> int:
        return max(self.frames, default=-1)

    def event(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.frames[number].partition(b"data: ")[2])
        return found

    @property
    def is_over(self) -> bool:
        return bool(self.frames) and self.event(self.last)["type"] in TERMINAL

    def check(self, api: str) -> str:
        """Check the whole history against what a server keeps now. Returns the final status."""
        with client() as http:
            return self._check(http, f"{api}/responses/{self.id}")

    def _check(self, http: httpx.Client, url: str) -> str:
        replayed = frames_of(http.get(url, params={"stream": "true"}).content)
        self.see(replayed)
        assert sorted(replayed) == list(range(self.last + 1)), f"{self.id}: a gap, or lost events"
        ends = [number for number in replayed if self.event(number)["type"] in TERMINAL]
        assert ends == [self.last], f"{self.id}: one terminal event, the last: {ends}"
        kept = http.get(url).json()
        assert kept == self.event(self.last)["response"], f"{self.id}: GET and the stream differ"
        return str(kept["status"])


class Reader(threading.Thread):
    """Creates a response somewhere and reads it to its end, from server to server as they die.

    `servers` gives the addresses to try, in order. Torn streams are resumed after what was seen.
    """

    def __init__(
        self,
        body: dict[str, Any],
        servers: Callable[[], Sequence[str]],
        *,
        key: str,
        limit_s: float,
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(name=f"reader {key}", daemon=True)
        self._headers = {**headers, "Idempotency-Key": key}
        self._body = {**body, "stream": True}
        self._servers = servers
        self._key = key
        self._deadline = time.monotonic() + limit_s
        self.watched: ObservedResponse | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with client(limit_s=5) as http:
                while self.watched is None or not self.watched.is_over:
                    assert time.monotonic() < self._deadline, f"{self._key} has no end in time"
                    for api in self._servers():
                        self._read(http, api)
                        if self.watched is not None and self.watched.is_over:
                            break
                self.watched.over_at = time.monotonic()
        except BaseException as error:
            self.error = error

    def _read(self, client: httpx.Client, api: str) -> None:
        try:
            if self.watched is None:
                # The same key at each try: whichever server took it, there is one response.
                self._take(
                    client,
                    "POST",
                    f"{api}/responses",
                    json=self._body,
                    headers=self._headers,
                )
            else:
                asked = {"stream": "true", "starting_after": self.watched.last}
                self._take(client, "GET", f"{api}/responses/{self.watched.id}", params=asked)
        except httpx.TransportError:
            time.sleep(0.02)  # dead, for now

    def _take(self, client: httpx.Client, method: str, url: str, **request: Any) -> None:
        seen = b""
        with client.stream(method, url, **request) as answer:
            if answer.status_code == 503:  # it is stopping
                time.sleep(0.02)
                return
            assert answer.status_code == 200, answer.read()
            try:
                for part in answer.iter_raw():
                    seen += part
                    *whole, seen = seen.split(b"\n\n")
                    for frame in whole:
                        if frame.startswith(b"event: "):
                            self._see(frame)
            except httpx.TransportError:
                pass  # cut off

    def _see(self, frame: bytes) -> None:
        if self.watched is None:
            event = msgspec.json.decode(frame.partition(b"data: ")[2])
            self.watched = ObservedResponse(event["response"]["id"])
        number = sequence_number_of(frame)
        known = self.watched.frames
        assert number in known or number == self.watched.last + 1, f"{number} leaves a gap"
        self.watched.see({number: frame})
