"""Clients that speak HTTP and WebSockets byte by byte, as no library would."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEAD = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
    b"connection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
TEXT, PING, PONG = 0x1, 0x9, 0xA

STREAM = {"model": "scripted-chat", "stream": True, "store": False}
HANGING = {**STREAM, "input": '@@script [[{"say": "now"}, {"hang": 60}]]'}


def connect(server: Any, *, source: str = "127.0.0.1", receive_buffer: int = 0) -> socket.socket:
    """Connect from an address of this machine."""
    host, _, port = server.url.partition("://")[2].rpartition(":")
    connection = socket.socket()
    connection.settimeout(30)
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.bind((source, 0))
    connection.connect((host, int(port)))
    return connection


def websocket(server: Any, *, headers: bytes = b"", receive_buffer: int = 0) -> socket.socket:
    """Open a WebSocket."""
    connection = connect(server, receive_buffer=receive_buffer)
    connection.sendall(HANDSHAKE + headers + b"\r\n")
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = connection.recv(1)
        assert part, answer
        answer += part
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return connection


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, length: int | None = None
) -> bytes:
    """Return a frame; `length` announces another length than the payload's."""
    size = len(payload) if length is None else length
    head = bytes([opcode | (0x80 if fin else 0)])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65_536:
        head += bytes([0x80 | 126]) + struct.pack("!H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", size)
    return head + bytes(4) + payload


def post(body: dict[str, Any]) -> bytes:
    """Return a request for a response."""
    raw = json.dumps(body).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(raw) + raw


def read_until_closed(connection: socket.socket) -> bytes:
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def read_answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return the head and the body of an answer with a length; the next one stays unread."""
    head = body = b""
    while not head.endswith(b"\r\n\r\n"):
        part = connection.recv(1)
        assert part, head
        head += part
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        part = connection.recv(length - len(body))
        assert part, body
        body += part
    return head, body


def reset(connection: socket.socket) -> None:
    """Close with a reset instead of an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def close_code(received: bytes) -> int:
    """Return the code of the close frame at the end of what a WebSocket received."""
    position = 0
    while position < len(received):
        opcode, length = received[position] & 0x0F, received[position + 1]
        position += 2
        if length == 126:
            length = int.from_bytes(received[position : position + 2], "big")
            position += 2
        elif length == 127:
            length = int.from_bytes(received[position : position + 8], "big")
            position += 8
        if opcode == 0x8:
            return int.from_bytes(received[position : position + 2], "big")
        position += length
    raise AssertionError("there was no close frame")
