"""Sixty-four clients of one kind at a time, at each door: slow, greedy, mute, idle, leaving."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct
from tests.security.support.attacker import NICENESS
from tests.security.support.other_tenant import client_of, make_keys, request_of
from tests.security.support.raw_clients import HANDSHAKE, TEXT, frame
from tests.security.support.server_probe import probe_server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

CLIENTS = int(os.environ.get("ANTIPHON_TEST_CROWD", "64"))
WATCHED_S = float(os.environ.get("ANTIPHON_TEST_CROWD_S", "0.5"))
MAX_GROWTH_BYTES = 256 * 1024 * 1024
"""A tenant may have 64 MB in work. A long body takes three times its bytes while it is decoded."""
RECEIVE_BUFFER = 4096
SOME_BYTES = 512
PAUSE_S = 0.05
MEGABYTE = 1_000_000

WORDS = "word " * 1000
LONG = {
    "model": "scripted-chat",
    "input": f'@@script [[{{"say": "{WORDS}", "repeat": 20}}]]',
    "store": False,
}
"""An answer of 100 KB, in 20,000 events."""


class Door(Struct, frozen=True):
    """What a client sends once, and then as often as it likes."""

    message: bytes
    opening: bytes = b""


class Client:
    """A connection that reads no more than it is asked to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
            return cls(*await asyncio.open_connection(sock=connection, limit=RECEIVE_BUFFER))
        except BaseException:
            connection.close()
            raise

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read(self, size: int) -> bytes:
        return await self._reader.read(size)

    def leave(self) -> None:
        self._writer.transport.abort()


async def be_slow(client: Client, door: Door) -> None:
    """Send and read a few bytes at a time."""
    await client.send(door.opening)
    unsent = door.message
    while unsent:
        await client.send(unsent[:SOME_BYTES])
        unsent = unsent[SOME_BYTES:]
        await asyncio.sleep(PAUSE_S)
    while True:
        if not await client.read(SOME_BYTES):
            return
        await asyncio.sleep(PAUSE_S)


async def be_greedy(client: Client, door: Door) -> None:
    """Send as much as is taken, and read as much as comes."""

    async def read() -> None:
        while await client.read(MEGABYTE):
            pass

    reading = asyncio.ensure_future(read())
    try:
        await flood(client, door)
    finally:
        reading.cancel()


async def flood(client: Client, door: Door) -> None:
    """Send as much as is taken, and read nothing."""
    await client.send(door.opening)
    while True:
        await client.send(door.message)


async def be_mute(client: Client, door: Door) -> None:
    """Ask once, and read nothing."""
    await client.send(door.opening + door.message)
    await asyncio.Event().wait()


async def stop_halfway(client: Client, door: Door) -> None:
    """Send half a message, and no more."""
    await client.send(door.opening + door.message[: len(door.message) // 2])
    await asyncio.Event().wait()


async def leave_soon(client: Client, door: Door) -> None:
    """Ask, and leave when the first bytes of an answer come."""
    await client.send(door.opening + door.message)
    await client.read(SOME_BYTES)


KINDS: list[Callable[[Client, Door], Awaitable[None]]] = [
    be_slow,
    be_greedy,
    flood,
    be_mute,
    stop_halfway,
    leave_soon,
]


async def crowd(port: int, door: Door, behave: Callable[[Client, Door], Awaitable[None]]) -> None:
    """Let clients behave for a while; each that has ended, or was sent away, comes again."""

    async def come_again() -> None:
        while True:
            with suppress(OSError):
                client = await Client.connect(port)
                try:
                    await behave(client, door)
                finally:
                    client.leave()
            await asyncio.sleep(PAUSE_S)

    # As if it were another machine: it must not delay the server.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    tasks = [asyncio.ensure_future(come_again()) for _ in range(CLIENTS)]
    await asyncio.wait(tasks, timeout=WATCHED_S)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


def answer(client: httpx.Client, **fields: Any) -> Door:
    return Door(request_of(client, "POST", "/responses", json={**LONG, **fields}))


def long_input(client: httpx.Client) -> Door:
    body = {"model": "scripted-chat", "input": "x" * 4 * MEGABYTE, "store": False}
    return Door(request_of(client, "POST", "/responses", json=body))


def messages(client: httpx.Client, *asked: dict[str, Any]) -> Door:
    key = client.headers["authorization"].encode()
    opening = HANDSHAKE + b"authorization: %s\r\n\r\n" % key
    frames = (frame(TEXT, json.dumps(each).encode()) for each in asked)
    return Door(b"".join(frames), opening=opening)


def long_page(client: httpx.Client) -> Door:
    conversation = client.post("/conversations", json={}).json()["id"]
    item = {"role": "user", "content": "x" * MEGABYTE}
    for _ in range(4):
        client.post(f"/conversations/{conversation}/items", json={"items": [item]})
    return Door(request_of(client, "GET", f"/conversations/{conversation}/items"))


def upload(client: httpx.Client) -> Door:
    files = {"file": ("a.txt", b"x" * 4 * MEGABYTE)}
    return Door(request_of(client, "POST", "/files", files=files, data={"purpose": "user_data"}))


def download(client: httpx.Client) -> Door:
    files = {"file": ("a.txt", b"x" * 8 * MEGABYTE)}
    made = client.post("/files", files=files, data={"purpose": "user_data"}).json()
    return Door(request_of(client, "GET", f"/files/{made['id']}/content"))


def read_again(client: httpx.Client) -> Door:
    made = client.post("/responses", json={**LONG, "store": True, "background": True}).json()
    return Door(request_of(client, "GET", f"/responses/{made['id']}?stream=true"))


CREATE = {"type": "response.create", **LONG}
DOORS: dict[str, Callable[[httpx.Client], Door]] = {
    "whole": answer,
    "stream": lambda client: answer(client, stream=True),
    "stored stream": lambda client: answer(client, stream=True, store=True),
    "background": lambda client: answer(client, background=True, store=True),
    "background stream": lambda client: answer(client, stream=True, background=True, store=True),
    "long input": long_input,
    "read again": read_again,
    "page": long_page,
    "upload": upload,
    "download": download,
    "models": lambda client: Door(request_of(client, "GET", "/models")),
    "websocket": lambda client: messages(client, CREATE),
    "websocket lanes": lambda client: messages(
        client, *({**CREATE, "stream_id": f"l{lane}"} for lane in range(4))
    ),
    "websocket long input": lambda client: messages(client, {**CREATE, "input": "x" * MEGABYTE}),
}


@pytest.mark.parametrize("door", DOORS)
def test_no_kind_of_client_fills_the_memory(tmp_path: Path, door: str) -> None:
    keys, options = make_keys(tmp_path)
    with (
        probe_server(tmp_path, "--store", "sqlite", *options) as server,
        client_of(server, keys["greedy"]) as greedy,
        client_of(server, keys["other"]) as other,
    ):
        opened = DOORS[door](greedy)
        body = {"model": "scripted-chat", "input": "hi", "store": False}
        with server.watch(give_back_s=0) as seen:
            for behave in KINDS:
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(asyncio.run, crowd(server.port, opened, behave)).result()
                other.post("/responses", json=body).raise_for_status()
    print(f"{door}: {seen}")
    assert seen.peak_growth_bytes < MAX_GROWTH_BYTES
