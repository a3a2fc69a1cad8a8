"""Bodies that clients have compressed: every endpoint reads them, within the limits of all."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.http.access.test_limits import Keys

from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.entrypoints.http.wire.plain_requests import DecodedBody

BODY = json.dumps({"model": "scripted-chat", "input": "hi there"}).encode()
JSON = {"content-type": "application/json"}


def deflate_raw(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("deflate", deflate_raw),
    "identity": ("identity", bytes),
    "none": (",identity", bytes),
}
coded = pytest.mark.parametrize(("name", "encode"), CODINGS.values(), ids=CODINGS)


@pytest.fixture(scope="module")
def small(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with keys and narrow limits."""
    folder = tmp_path_factory.mktemp("codings")
    file = folder / "keys.toml"
    file.touch()
    settings = {"max_body_bytes": 1_000_000, "max_file_bytes": 2_000_000, "store": "sqlite"}
    with serve_from(folder, auth="on", keys_file=file, **settings) as server:
        yield Keys(file, server)


@pytest.fixture
def client(small: Keys) -> Iterator[httpx.Client]:
    with small.client() as client:
        yield client


@coded
def test_a_compressed_request_is_answered_as_a_plain_one(
    client: httpx.Client, name: str, encode: Callable[[bytes], bytes]
) -> None:
    headers = {**JSON, "content-encoding": name}
    answer = client.post("/responses", content=encode(BODY), headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"].endswith("hi there")
    counted = client.post("/responses/input_tokens", content=encode(BODY), headers=headers)
    plain = client.post("/responses/input_tokens", content=BODY, headers=JSON)
    assert counted.json() == plain.json()


@coded
def test_a_compressed_form_is_read(
    client: httpx.Client, name: str, encode: Callable[[bytes], bytes]
) -> None:
    content = b"all work and no play " * 20_000
    form = client.build_request(
        "POST", "/files", data={"purpose": "user_data"}, files={"file": ("a.txt", content)}
    )
    headers = {"content-type": form.headers["content-type"], "content-encoding": name}
    answer = client.post("/files", content=encode(form.read()), headers=headers)
    assert answer.status_code == 200, answer.text
    assert client.get(f"/files/{answer.json()['id']}/content").content == content


@pytest.mark.parametrize("coding", ["zstd", "br", "compress", "gzip, gzip", "gzip, br", "ünknown"])
def test_an_unknown_coding_is_refused_with_those_that_are_known(
    client: httpx.Client, coding: str
) -> None:
    headers = {**JSON, "content-encoding": coding.encode("latin-1")}
    answer = client.post("/responses", content=BODY, headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "gzip, deflate"
    assert "one of: gzip, deflate." in answer.json()["error"]["message"]
    assert answer.headers["x-request-id"]


def test_a_coding_is_nobodys_business_without_a_key(small: Keys) -> None:
    answer = httpx.post(
        f"{small.server.api}/responses",
        content=gzip.compress(bytes(10_000_000)),
        headers={**JSON, "content-encoding": "gzip"},
    )
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"plain",
        gzip.compress(BODY)[:-9],
        gzip.compress(BODY)[:5],
        gzip.compress(BODY) + b"more",
        gzip.compress(BODY)[:-8] + bytes(8),
        zlib.compress(BODY),
    ],
    ids=["plain", "cut off", "cut off early", "with more", "a wrong checksum", "another format"],
)
def test_a_body_of_another_format_is_a_clear_400(client: httpx.Client, body: bytes) -> None:
    headers = {**JSON, "content-encoding": "gzip"}
    answer = client.post("/responses", content=body, headers=headers)
    assert answer.status_code == 400
    assert "not valid 'gzip'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("encode", [gzip.compress, zlib.compress, deflate_raw])
@pytest.mark.parametrize("path", ["/responses", "/conversations", "/vector_stores", "/files"])
def test_a_body_that_grows_beyond_the_limit_is_refused(
    client: httpx.Client, path: str, encode: Callable[[bytes], bytes]
) -> None:
    coding = "gzip" if encode is gzip.compress else "deflate"
    start, kind = b'{"a": "', "application/json"
    if path == "/files":
        kind = "multipart/form-data; boundary=b"
        start = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    headers = {"content-type": kind, "content-encoding": coding}
    answer = client.post(path, content=encode(start + b"a" * 20_000_000), headers=headers)
    assert answer.status_code == 413, answer.text


def test_decoded_bytes_count_as_bytes_in_work(
    serve: Callable[..., AbstractContextManager[Any]],
) -> None:
    with serve(max_work_bytes=2_000_000, max_body_bytes=8_000_000) as server:
        body = gzip.compress(b'{"model":"scripted-chat","input":"%s"}' % (b"a" * 1_500_000))
        headers = {**JSON, "content-encoding": "gzip"}
        answer = httpx.post(f"{server.api}/responses", content=body, headers=headers)
    assert answer.status_code == 429
    assert "bytes" in answer.json()["error"]["message"]
    assert isinstance(server.container.bytes_in_work(), BytesInWork)
    assert server.container.bytes_in_work().total == 0


@given(
    data=st.binary(max_size=300).map(lambda seed: seed * 1000),
    encode=st.sampled_from([gzip.compress, zlib.compress, deflate_raw]),
    step=st.integers(1, 70_000),
)
async def test_a_body_is_decoded_in_small_portions_however_it_arrives(
    data: bytes, encode: Callable[[bytes], bytes], step: int
) -> None:
    body = encode(data)
    step = max(step, len(body) // 50)
    parts = [body[at : at + step] for at in range(0, len(body), step)]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    messages.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return messages.pop(0)

    decoded = DecodedBody(receive, "gzip" if encode is gzip.compress else "deflate")
    received = b""
    while (message := await decoded.receive())["more_body"]:
        assert len(message["body"]) <= 65_536
        received += message["body"]
    assert received + message["body"] == data
    assert await decoded.receive() == {"type": "http.disconnect"}
