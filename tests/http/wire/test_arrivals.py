"""Which connections are served first when more have come than one iteration can serve."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from antiphon.entrypoints.http.wire.arrivals import Arrivals

CHECK = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


def request_of(key: str) -> bytes:
    head = "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
    return f"{head}Authorization: Bearer {key}\r\n".encode()


class Door:
    """Arrivals, and clients whose connections have arrived there."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.arrivals = Arrivals()
        self._names: dict[int, str] = {}

    def come(self, name: str, sent: bytes = b"") -> None:
        client, connection = socket.socketpair()
        self._stack.enter_context(closing(client))
        self._stack.enter_context(closing(connection))
        client.sendall(sent)
        self._names[connection.fileno()] = name
        self.arrivals.add(connection)

    def take(self, count: int) -> list[str]:
        return [self._names[each.fileno()] for each in self.arrivals.take(count)]


@pytest.fixture
def door() -> Iterator[Door]:
    with ExitStack() as stack:
        yield Door(stack)


def test_credentials_take_turns(door: Door) -> None:
    for number in range(4):
        door.come(f"loud {number}", request_of("loud"))
    door.come("quiet", request_of("quiet"))
    assert door.take(10) == ["loud 0", "quiet", "loud 1", "loud 2", "loud 3"]


def test_a_health_check_passes_all_others(door: Door) -> None:
    for number in range(4):
        door.come(f"loud {number}", request_of("loud"))
    door.come("check", CHECK)
    assert door.take(2) == ["check", "loud 0"]
    assert len(door.arrivals) == 3


def test_a_flood_of_health_checks_leaves_half_of_the_places(door: Door) -> None:
    for number in range(6):
        door.come(f"check {number}", CHECK)
    door.come("quiet", request_of("quiet"))
    assert door.take(4) == ["check 0", "check 1", "check 2", "quiet"]
    assert door.take(4) == ["check 3", "check 4", "check 5"]


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00", b"GET /livezx HTTP/1.1\r\n\r\n"])
def test_those_that_show_no_credential_come_in_their_order(door: Door, sent: bytes) -> None:
    for number in range(3):
        door.come(f"{number}", sent)
    assert door.take(2) == ["0", "1"]
    assert door.take(2) == ["2"]


def test_a_look_at_a_connection_takes_nothing_from_it(door: Door) -> None:
    door.come("quiet", request_of("quiet"))
    (connection,) = door.arrivals.take(1)
    assert connection.recv(4096) == request_of("quiet")


def test_a_client_that_has_left_takes_its_turn_like_any_other(door: Door) -> None:
    client, connection = socket.socketpair()
    client.close()
    with closing(connection):
        door.arrivals.add(connection)
        assert door.arrivals.take(1) == [connection]
