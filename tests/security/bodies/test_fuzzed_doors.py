"""Thousands of odd paths, hosts and keys: nothing but the public pages is answered without a key.

`ANTIPHON_TEST_CASES` says how many are tried; they are the same ones each time.
"""

from __future__ import annotations

import inspect
import os
import random
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.entrypoints.http.access.auth import PUBLIC
from antiphon.entrypoints.http.app import create_app

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("ANTIPHON_TEST_CASES", "500"))
LIMIT_S = 30

METHODS = (b"GET", b"GET", b"GET", b"POST", b"HEAD", b"DELETE", b"PUT", b"OPTIONS", b"TRACE", b"X")
PIECES = (
    *(b"..", b".", b"/", b"//", b"/./", b"/../", b"\\", b";", b"?", b"#", b"%", b"@", b":", b"*"),
    *(
        b"%2f",
        b"%2F",
        b"%5c",
        b"%2e",
        b"%2e%2e/",
        b"%00",
        b"%0a",
        b"%0d%0a",
        b"%23",
        b"%3f",
        b"%20",
    ),
    *(b"%252f", b"%c0%af", b"%c0%ae", b"%ef%bc%8f", b"\xc3\xa4", b"\xff", b"%zz", b"%u002f", b"\t"),
    *(b"/health/live", b"/livez", b"/schema", b"/v1", b"/v1/models", b"http://x", b"//x", b"?a=/"),
)
HOSTS = (
    *(b"x", b"localhost", b"127.0.0.1:80", b"[::1]", b"", b"a b", b"x/livez", b"x?", b"x#", b"a@b"),
    *(b"x:80:80", b"[::1", b"\xc3\xa4", b"livez", b"x\\livez", b"x,y", b"x:99999", b".", b"%2f"),
)
ODD_HEADERS = (
    *(b"x-forwarded-host", b"x-forwarded-prefix", b"x-forwarded-uri", b"x-original-url"),
    *(b"x-rewrite-url", b"x-http-method-override", b"forwarded", b"x-forwarded-for", b"referer"),
    *(b"x-api-key", b"api-key", b"cookie", b"proxy-authorization", b"x-forwarded-user", b"origin"),
)
WEBSOCKET = (
    (b"connection", b"Upgrade"),
    (b"upgrade", b"websocket"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-key", b"AAAAAAAAAAAAAAAAAAAAAA=="),
)


class Door(msgspec.Struct, frozen=True):
    """A server that asks for keys; `pages` are its answers to public requests."""

    address: tuple[str, int]
    key: bytes
    paths: Sequence[bytes]
    pages: frozenset[bytes]

    def send(self, request: bytes) -> bytes:
        """Return the first answer."""
        answer = b""
        # A server that refuses a request may close before it has read all of it.
        with (
            socket.create_connection(self.address, timeout=LIMIT_S) as connection,
            suppress(ConnectionError),
        ):
            connection.sendall(request)
            while not is_whole(answer, is_head=request.startswith(b"HEAD")):
                piece = connection.recv(65536)
                if not piece:
                    break
                answer += piece
        return answer


def is_whole(answer: bytes, *, is_head: bool) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: ([0-9]+)", head, re.IGNORECASE)
    is_bare = is_head or head[9:12] in (b"101", b"204", b"304")
    return bool(end) and (is_bare or (length is not None and len(body) >= int(length[1])))


@pytest.fixture(scope="module")
def door(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    keys_file = folder / "keys.toml"
    key, kept = create_key("test", "t", new_id=lambda prefix: f"{prefix}_1", now=lambda: 0)
    append(keys_file, kept)
    with serve_from(folder, auth="on", keys_file=keys_file) as server:
        address = urlsplit(server.url)
        assert address.hostname is not None
        assert address.port is not None
        names = inspect.signature(create_app).parameters
        # Only its routes are looked at: what no service has the name of may be anything.
        app = create_app(**{name: getattr(server.app, name, 0) for name in names})
        routes = {re.sub(r"\{[^}]+\}", "x", route.path).encode() for route in app.routes}
        yield Door(
            address=(address.hostname, address.port),
            key=key.encode(),
            paths=sorted(routes | {path.encode() for path in PUBLIC}),
            pages=frozenset(httpx.get(f"{server.url}{path}").content for path in PUBLIC),
        )


def odd_text(rng: random.Random, text: bytes) -> bytes:
    """Return a text with one to three pieces put in, taken out or written otherwise."""
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, len(text))
        match rng.randint(0, 6):
            case 0 | 1:
                text = text[:place] + rng.choice(PIECES) + text[place:]
            case 2:
                text = text[:place] + bytes([rng.randint(1, 255)]) + text[place:]
            case 3:
                text = text[:place] + text[place + 1 :]
            case 4:
                escaped = b"".join(b"%%%02x" % each for each in text[place : place + 1])
                text = text[:place] + escaped + text[place + 1 :]
            case 5:
                text = text[:place] + text[place : place + 3].swapcase() + text[place + 3 :]
            case _:
                text = (
                    rng.choice(PIECES) + text if rng.random() < 0.5 else text + rng.choice(PIECES)
                )
    return text


def odd_target(rng: random.Random, door: Door) -> bytes:
    path = rng.choice(door.paths)
    if rng.random() < 0.2:
        path = b"%b%b%b" % (path, rng.choice(PIECES), rng.choice(door.paths))
    target = odd_text(rng, path) if rng.random() < 0.9 else path
    # A space would end the target; a line break would begin another header.
    return re.sub(rb"[ \r\n]", b"_", target) or b"/"


def wrong_authorization(rng: random.Random, key: bytes) -> bytes | None:
    """Return a value that is not the key as RFC 6750 writes it; None for no header."""
    right = b"Bearer " + key
    match rng.randint(0, 4):
        case 0:
            return None
        case 1:
            value = rng.choice((b"", b"Bearer", b"Basic " + key, key, right + b"," + right))
        case 2:
            value = b"Bearer " + odd_text(rng, key)
        case _:
            value = odd_text(rng, right)
    value = re.sub(rb"[\r\n\0]", b"_", value)
    is_right = re.fullmatch(rb"bearer +" + re.escape(key), value.strip(b" \t"), re.IGNORECASE)
    return None if is_right else value


def odd_request(rng: random.Random, door: Door) -> bytes:
    """Return a request without a valid key that is odd in one place or several."""
    host = rng.choice(HOSTS) if rng.random() < 0.3 else b"x"
    headers = [(b"host", host)] * rng.choice((1, 1, 1, 1, 1, 0, 2))
    authorization = wrong_authorization(rng, door.key)
    if authorization is not None:
        headers += [(b"authorization", authorization)] * rng.choice((1, 1, 1, 2))
    if rng.random() < 0.3:
        value = rng.choice((b"/livez", b"Bearer " + door.key, door.key, b"127.0.0.1", b"GET"))
        headers.append((rng.choice(ODD_HEADERS), value))
    headers += WEBSOCKET if rng.random() < 0.1 else [(b"connection", b"close")]
    rng.shuffle(headers)
    head = b"%b %b HTTP/1.1\r\n" % (rng.choice(METHODS), odd_target(rng, door))
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return head + lines + b"content-length: 0\r\n\r\n"


def test_nothing_but_a_public_page_is_answered_without_a_key(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(5000)
    refused = public = 0
    for _ in range(CASES):
        request = odd_request(rng, door)
        answer = door.send(request)
        assert answer.startswith(b"HTTP/1.1 "), (request, answer)
        status = int(answer[9:12])
        assert 200 <= status < 500, (request, answer)
        body = answer.partition(b"\r\n\r\n")[2]
        if status < 400:
            is_head = request.startswith((b"HEAD", b"OPTIONS"))
            assert body in door.pages or (is_head and body == b""), (request, answer)
            public += 1
        else:
            assert door.key not in answer, request
            refused += 1
    assert refused > public > 0
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []


def test_the_right_key_opens_the_same_door(door: Door) -> None:
    """Otherwise the test above would prove nothing."""
    request = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    request += b"authorization: Bearer %b\r\n\r\n" % door.key
    assert door.send(request).startswith(b"HTTP/1.1 200")
