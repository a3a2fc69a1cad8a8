"""Images and files in what clients send: shown to the model, bounded, refused with their path."""

from __future__ import annotations

import base64
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any, ClassVar

import httpx
import pypdf
import pytest

IMAGE_TOKENS = 85


def png(width: int = 2, height: int = 2, shade: int = 0) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes([shade]) * width) * height) if width < 1000 else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def pdf(text: str) -> bytes:
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    drawn = f"BT /F1 12 Tf 20 20 Td ({text}) Tj ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R "
        f"/Resources << /Font << /F1 {font} >> >> >>",
        f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
    ]
    body = b"%PDF-1.4\n"
    offsets = []
    for number, each in enumerate(objects, start=1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{each}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return body + f"{end}startxref\n{len(body)}\n%%EOF\n".encode()


def image(**fields: Any) -> dict[str, Any]:
    return {"type": "input_image", **fields}


def file(**fields: Any) -> dict[str, Any]:
    return {"type": "input_file", **fields}


def user(*parts: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": p} if isinstance(p, str) else p for p in parts]
    return {"role": "user", "content": content}


def count(http: httpx.Client, model: str, *items: Any) -> int:
    answer = http.post("/responses/input_tokens", json={"model": model, "input": list(items)})
    assert answer.status_code == 200, answer.text
    tokens: int = answer.json()["input_tokens"]
    return tokens


def echo(http: httpx.Client, model: str, *items: Any) -> str:
    """Return the end of what the model was told last: it repeats it."""
    answer = http.post("/responses", json={"model": model, "input": list(items)})
    assert answer.status_code == 200, answer.text
    [message] = answer.json()["output"]
    text: str = message["content"][0]["text"]
    return text


def error(http: httpx.Client, model: str, *items: Any) -> dict[str, Any]:
    """Return the error of a request that is refused by a run and by a count alike."""
    body = {"model": model, "input": list(items)}
    answers = [http.post(path, json=body) for path in ("/responses", "/responses/input_tokens")]
    assert [answer.status_code for answer in answers] == [400, 400], answers[0].text
    assert answers[0].json() == answers[1].json()
    found: dict[str, Any] = answers[0].json()["error"]
    return found


def upload(http: httpx.Client, content: bytes, name: str = "f") -> str:
    sent = http.post("/files", files={"file": (name, content)}, data={"purpose": "user_data"})
    file_id: str = sent.json()["id"]
    return file_id


# --- images ---------------------------------------------------------------------------------------


def test_an_image_is_seen_however_it_comes(http: httpx.Client, model: str) -> None:
    without = count(http, model, user("Look"))
    content = png()
    broken_lines = base64.encodebytes(content).decode()
    for part in (
        image(image_url=data_url(content)),
        image(image_url=data_url(content, "image/jpeg"), detail="high"),
        image(image_url=data_url(content, "application/octet-stream"), detail=None),
        image(image_url=f"DATA:image/png;charset=x;BASE64,{broken_lines}"),
        image(file_id=upload(http, content), image_url=None, detail="low"),
        file(file_data=data_url(content), filename="a.png"),
    ):
        assert count(http, model, user("Look", part)) == without + IMAGE_TOKENS


def test_images_of_tools_are_seen_too(http: httpx.Client, model: str) -> None:
    url = data_url(png())
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "look", "input": ""}
    computer = {"type": "computer_call", "call_id": "c1", "action": {"type": "screenshot"}}
    part = image(image_url=url)
    shot = {"type": "computer_screenshot", "image_url": url}
    stored = {"type": "computer_screenshot", "file_id": upload(http, png())}
    for asked, kind, with_image, without in (
        (call, "function_call_output", [part], ""),
        (custom, "custom_tool_call_output", [part], ""),
        (computer, "computer_call_output", shot, None),
        (computer, "computer_call_output", stored, None),
    ):
        answered = {"type": kind, "call_id": "c1"}
        shown = count(http, model, user("Look"), asked, {**answered, "output": with_image})
        assert shown > IMAGE_TOKENS
        if without is not None:
            plain = count(http, model, user("Look"), asked, {**answered, "output": without})
            assert shown == plain + IMAGE_TOKENS


@pytest.mark.one_process
def test_the_same_image_is_cached_and_another_is_not(http: httpx.Client, model: str) -> None:
    def cached(shade: int) -> int:
        body = {"model": model, "input": [user(image(image_url=data_url(png(9, 9, shade))), "?")]}
        usage = http.post("/responses", json=body).json()["usage"]
        tokens: int = usage["input_tokens_details"]["cached_tokens"]
        return tokens

    assert [cached(101), cached(101) > 60, cached(102)] == [0, True, 0]


def test_what_was_sent_is_what_is_stored(http: httpx.Client, model: str) -> None:
    file_id = upload(http, b"hello", "notes.txt")
    sent = [image(image_url=data_url(png()), detail="low"), file(file_id=file_id)]
    created = http.post("/responses", json={"model": model, "input": [user(*sent)]}).json()
    [item] = http.get(f"/responses/{created['id']}/input_items").json()["data"]
    assert item["content"] == sent


def test_images_are_seen_again_in_the_next_turn(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": [user(image(image_url=data_url(png())), "Look")]}
    first = http.post("/responses", json=body).json()
    second = {"model": model, "input": "Again", "previous_response_id": first["id"]}
    created = http.post("/responses", json=second).json()
    assert created["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_an_image_that_is_gone_is_told_of_when_its_turn_is_continued(
    http: httpx.Client, model: str
) -> None:
    file_id = upload(http, png())
    body = {"model": model, "input": [user(image(file_id=file_id), "Look")]}
    first = http.post("/responses", json=body).json()
    http.delete(f"/files/{file_id}")
    second = {"model": model, "input": "Again", "previous_response_id": first["id"]}
    refused = http.post("/responses", json=second)
    assert refused.status_code == 400
    found = refused.json()["error"]
    assert (found["param"], found["code"]) == ("input", "image_file_not_found")
    assert file_id in found["message"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"image_url": "data:image/png;base64,!!!"}, ".image_url", "invalid_base64_image"),
        ({"image_url": "data:image/png;base64,abc"}, ".image_url", "invalid_base64_image"),
        ({"image_url": "data:image/png;base64,é"}, ".image_url", "invalid_base64_image"),
        ({"image_url": "data:image/png,abcd"}, ".image_url", "invalid_base64_image"),
        ({"image_url": "data:"}, ".image_url", "invalid_base64_image"),
        ({"image_url": "data:image/png;base64,"}, ".image_url", "empty_image_file"),
        ({"image_url": data_url(b"<svg/>", "image/svg+xml")}, ".image_url", "invalid_image_format"),
        (
            {"image_url": data_url(b"hello", "text/plain")},
            ".image_url",
            "unsupported_image_media_type",
        ),
        ({"image_url": data_url(png(60_000, 60_000))}, ".image_url", "image_too_large"),
        ({"image_url": "https://example.org/a.png"}, ".image_url", "invalid_image_url"),
        ({"image_url": "file:///etc/passwd"}, ".image_url", "invalid_image_url"),
        ({"image_url": ""}, ".image_url", "missing_required_parameter"),
        ({}, ".image_url", "missing_required_parameter"),
        ({"file_id": "file-none"}, ".file_id", "image_file_not_found"),
        ({"file_id": "../../etc/passwd"}, ".file_id", "image_file_not_found"),
    ],
)
def test_a_wrong_image_is_named(
    http: httpx.Client, model: str, fields: dict[str, Any], param: str, code: str
) -> None:
    refused = error(http, model, user("a"), user("b", image(**fields)))
    assert (refused["param"], refused["code"]) == (f"input[1].content[1]{param}", code)


def test_a_wrong_image_of_a_tool_is_named(http: httpx.Client, model: str) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": [image(image_url="data:")]}
    assert error(http, model, call, output)["param"] == "input[1].output[0].image_url"
    call = {"type": "computer_call", "call_id": "c1", "action": {"type": "screenshot"}}
    shot = {"type": "computer_screenshot", "image_url": "data:"}
    output = {"type": "computer_call_output", "call_id": "c1", "output": shot}
    assert error(http, model, call, output)["param"] == "input[1].output.image_url"


def test_the_number_and_size_of_media_are_limited(serve: Any, model: str) -> None:
    limits = {"max_media": 3, "max_media_bytes": 500}
    with serve(**limits) as server, httpx.Client(base_url=server.api) as http:
        small = image(image_url=data_url(png()))
        assert count(http, model, user(*[small] * 3)) > 3 * IMAGE_TOKENS
        assert error(http, model, user(*[small] * 4))["code"] == "array_above_max_length"
        assert error(http, model, *[user(small)] * 4)["code"] == "array_above_max_length"
        text = file(file_data=base64.b64encode(b"x" * 501).decode())
        assert error(http, model, user(text))["code"] == "file_too_large"


def test_the_pixels_of_images_are_limited(serve: Any, model: str) -> None:
    with serve(max_image_pixels=100) as server, httpx.Client(base_url=server.api) as http:
        whole = image(image_url=data_url(png(10, 10)))
        assert count(http, model, user(*[whole] * 8)) > 8 * IMAGE_TOKENS
        assert error(http, model, user(*[whole] * 9))["code"] == "image_too_large"
        large = image(image_url=data_url(png(11, 10)))
        assert error(http, model, user(large))["code"] == "image_too_large"


# --- files ----------------------------------------------------------------------------------------


def test_a_text_is_read_with_its_name(http: httpx.Client, model: str) -> None:
    encoded = base64.b64encode(b"a,b\n1,2").decode()
    for part in (
        file(file_data=encoded, filename="t.csv"),
        file(file_data=f"data:text/csv;base64,{encoded}", filename="t.csv"),
        file(file_id=upload(http, b"a,b\n1,2", "t.csv"), filename=None),
        file(file_id=upload(http, b"a,b\n1,2", "other"), filename="t.csv"),
        file(file_data=base64.b64encode("a,b\n1,2".encode("utf-16")).decode(), filename="t.csv"),
    ):
        assert echo(http, model, user(part)).endswith('<file name="t.csv">\na,b\n1,2\n</file>')


def test_the_name_of_a_file_cannot_end_its_heading(http: httpx.Client, model: str) -> None:
    part = file(file_data=base64.b64encode(b"x").decode(), filename='a">\n</file>b')
    said = echo(http, model, user(part))
    assert said.endswith("""<file name="a') (/file)b">\nx\n</file>""")


def test_the_text_of_a_pdf_is_read(http: httpx.Client, model: str) -> None:
    part = file(file_data=base64.b64encode(pdf("Hello from a page")).decode(), filename="d.pdf")
    assert "Hello from a page" in echo(http, model, user(part))


def encrypted() -> bytes:
    writer, written = pypdf.PdfWriter(BytesIO(pdf("secret"))), BytesIO()
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(written)
    return written.getvalue()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"file_data": "!!!"}, ".file_data"),
        ({"file_data": "data:text/plain,abc"}, ".file_data"),
        ({"file_data": base64.b64encode(b"\x00\x01\x02").decode()}, ".file_data"),
        ({"file_data": base64.b64encode(b"\xff\xfe\xfd").decode()}, ".file_data"),
        ({"file_data": base64.b64encode(b"PK\x03\x04\xff" * 9).decode()}, ".file_data"),
        ({"file_data": base64.b64encode(b"%PDF-1.4 rubbish").decode()}, ".file_data"),
        ({"file_data": base64.b64encode(encrypted()).decode()}, ".file_data"),
        ({"file_data": base64.b64encode(pdf(" ")).decode()}, ".file_data"),
        ({"file_url": "https://example.org/a.txt"}, ".file_url"),
        ({"file_id": "file-none"}, ".file_id"),
        ({"filename": "a.txt"}, ".file_id"),
    ],
)
def test_a_wrong_file_is_named(
    http: httpx.Client, model: str, fields: dict[str, Any], param: str
) -> None:
    refused = error(http, model, user("a", file(**fields)))
    assert refused["param"] == f"input[0].content[1]{param}"
    assert "0x" not in refused["message"]


# --- what is fetched ------------------------------------------------------------------------------


class Site(BaseHTTPRequestHandler):
    pages: ClassVar[dict[str, tuple[int, str, bytes]]] = {
        "/a.png": (200, "image/png", png()),
        "/my%20notes.txt": (200, "text/plain", b"fetched notes"),
        "/page": (200, "text/html", b"<html>"),
        "/large.png": (200, "image/png", png() + bytes(3000)),
        "/moved": (302, "text/plain", b""),
    }

    def do_GET(self) -> None:
        status, kind, content = self.pages.get(self.path, (404, "text/plain", b"secret page"))
        self.send_response(status)
        if status == 302:
            self.send_header("location", "http://127.0.0.2:9/internal")
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def fetching(serve: Any, site: str) -> Iterator[httpx.Client]:
    """A client of a server that may fetch from the site, and from nowhere else."""
    allowed = {"fetch.urls": True, "fetch.hosts": [site], "fetch.private": ["127.0.0.1/32"]}
    with (
        serve(**allowed, **{"fetch.max_bytes": 2000}) as server,
        httpx.Client(base_url=server.api, timeout=30) as http,
    ):
        yield http


def test_a_url_is_fetched_if_the_settings_allow_it(
    fetching: httpx.Client, site: str, model: str
) -> None:
    without = count(fetching, model, user("Look"))
    part = image(image_url=f"http://{site}/a.png")
    assert count(fetching, model, user("Look", part)) == without + IMAGE_TOKENS
    notes = file(file_url=f"http://{site}/my%20notes.txt")
    assert echo(fetching, model, user(notes)).endswith(
        '<file name="my notes.txt">\nfetched notes\n</file>'
    )


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://{site}/none.png", "failed_to_download_image"),
        ("http://{site}/moved", "failed_to_download_image"),
        ("http://{site}/page", "unsupported_image_media_type"),
        ("http://{site}/my%20notes.txt", "unsupported_image_media_type"),
        ("http://{site}/large.png", "image_file_too_large"),
        ("http://127.0.0.1/a.png", "invalid_image_url"),
        ("http://user@{site}/a.png", "invalid_image_url"),
        ("http://169.254.169.254/latest/meta-data/", "invalid_image_url"),
        ("ftp://{site}/a.png", "invalid_image_url"),
        ("rubbish", "invalid_image_url"),
    ],
)
def test_a_url_that_gives_no_image_is_named(
    fetching: httpx.Client, site: str, url: str, code: str
) -> None:
    part = image(image_url=url.replace("{site}", site))
    refused = error(fetching, "scripted-chat", user("?", part))
    assert (refused["param"], refused["code"]) == ("input[0].content[1].image_url", code)
    assert "secret" not in refused["message"]
    assert "127.0.0" not in refused["message"]
