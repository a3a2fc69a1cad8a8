"""A client of WebSocket mode, for tests."""

from __future__ import annotations

import json
from typing import Any

from websockets.sync.client import ClientConnection

Event = dict[str, Any]
LAST = ("response.completed", "response.incomplete", "response.failed")


class Client:
    """A client that sends creates and reads events."""

    def __init__(self, connection: ClientConnection, model: str = "scripted-chat") -> None:
        self.connection = connection
        self.model = model

    def send(self, **message: Any) -> None:
        self.connection.send(json.dumps(message))

    def ask(self, given: Any = "hi", **fields: Any) -> None:
        self.send(type="response.create", model=self.model, input=given, **fields)

    def event(self) -> Event:
        text = self.connection.recv(timeout=30)
        assert isinstance(text, str), "frames are text"
        found: Event = json.loads(text)
        return found

    def until(self, *kinds: str) -> list[Event]:
        """Read up to an event of one of these types, or an error that is no part of a stream."""
        found = [self.event()]
        while found[-1]["type"] not in kinds and "status" not in found[-1]:
            found.append(self.event())
        return found

    def turn(self, given: Any = "hi", **fields: Any) -> dict[str, Any]:
        """Create a response that is accepted, and return its last state."""
        self.ask(given, **fields)
        last = self.until(*LAST)[-1]
        assert last["type"] in LAST, last
        response: dict[str, Any] = last["response"]
        return response

    def refusal(self, given: Any = "hi", **fields: Any) -> dict[str, Any]:
        """Create a response that is refused, and return the error."""
        self.ask(given, **fields)
        return self.error()["error"]  # type: ignore[no-any-return]

    def error(self) -> Event:
        event = self.event()
        assert event["type"] == "error", event
        assert set(event["error"]) >= {"type", "code", "message", "param"}
        assert isinstance(event["status"], int)
        return event


def url_of(server: Any) -> str:
    return f"{server.api}/responses".replace("http", "ws", 1)
