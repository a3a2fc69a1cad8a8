"""Uploaded files: what clients send is what they get back, until they delete it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import OpenAI

CONTENT = bytes(range(256))


def upload(
    http: httpx.Client, content: bytes = CONTENT, name: str = "a b.bin", purpose: str = "user_data"
) -> dict[str, Any]:
    sent = http.post("/files", files={"file": (name, content)}, data={"purpose": purpose})
    assert sent.status_code == 200, sent.text
    file: dict[str, Any] = sent.json()
    return file


def test_an_uploaded_file_is_described(http: httpx.Client) -> None:
    file = upload(http)
    assert file["id"].startswith("file-")
    assert file["created_at"] > 1_700_000_000
    assert file == {
        "id": file["id"],
        "object": "file",
        "bytes": 256,
        "created_at": file["created_at"],
        "filename": "a b.bin",
        "purpose": "user_data",
        "status": "processed",
    }
    assert http.get(f"/files/{file['id']}").json() == file


def test_the_content_comes_back_and_no_browser_shows_it(http: httpx.Client) -> None:
    file = upload(http, b"<script>alert(1)</script>", "ü.html")
    answer = http.get(f"/files/{file['id']}/content")
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC.html"


def test_a_deleted_file_is_unknown(http: httpx.Client) -> None:
    file_id = upload(http)["id"]
    deleted = http.delete(f"/files/{file_id}")
    assert deleted.json() == {"id": file_id, "object": "file", "deleted": True}
    for answer in (
        http.get(f"/files/{file_id}"),
        http.get(f"/files/{file_id}/content"),
        http.delete(f"/files/{file_id}"),
    ):
        assert answer.status_code == 404
        assert file_id in answer.json()["error"]["message"]


def test_the_official_client_uploads_lists_reads_and_deletes(server: Any) -> None:
    with OpenAI(base_url=server.api, api_key="none") as client:
        file = client.files.create(file=("notes.txt", b"hello"), purpose="assistants")
        assert client.files.retrieve(file.id) == file
        assert client.files.content(file.id).read() == b"hello"
        assert file.id in [each.id for each in client.files.list(purpose="assistants")]
        assert client.files.delete(file.id).deleted
        assert file.id not in [each.id for each in client.files.list()]


def test_files_are_listed_in_pages(serve: Any) -> None:
    with serve() as server, httpx.Client(base_url=server.api) as http:
        assert http.get("/files").json() == {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }
        ids = [upload(http, purpose=p)["id"] for p in ("vision", "user_data", "vision")]
        page = http.get("/files", params={"limit": 2, "order": "asc"}).json()
        assert [file["id"] for file in page["data"]] == ids[:2]
        assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[1], True)
        rest = http.get("/files", params={"after": ids[1], "order": "asc"}).json()
        assert [file["id"] for file in rest["data"]] == ids[2:]
        assert not rest["has_more"]
        newest = http.get("/files", params={"purpose": "vision"}).json()
        assert [file["id"] for file in newest["data"]] == [ids[2], ids[0]]
        refused = http.get("/files", params={"after": "file-none"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\cat.png", "cat.png"),
        ("a\u202eb.txt", "ab.txt"),
        ("x" * 300, "x" * 255),
        ("..", ".."),
    ],
)
def test_a_name_is_only_a_name(http: httpx.Client, name: str, shown: str) -> None:
    file = upload(http, name=name)
    assert file["filename"] == shown
    assert http.get(f"/files/{file['id']}/content").content == CONTENT


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (b"filename=\"a_.txt\"; filename*=UTF-8''%C3%A4%20b.txt", "ä b.txt"),
        (b"filename*=utf-8'de'%e2%82%ac.txt", "€.txt"),
        (b"filename*=iso-8859-1''%E4.txt; filename=\"a.txt\"", "ä.txt"),
        (b"filename=\"a.txt\"; filename*=punycode''b.txt", "a.txt"),
        (b"filename*=utf-8''..%2F..%2Fpasswd", "passwd"),
        (b"filename*=utf-8''%FF.txt", "\ufffd.txt"),
    ],
)
def test_the_extended_name_of_a_file_is_the_one_that_counts(
    http: httpx.Client, names: bytes, shown: str
) -> None:
    file = FILE.replace(b'filename="a"', names)
    answer = http.post("/files", **form(file, PURPOSE))
    assert answer.status_code == 200, answer.text
    assert answer.json()["filename"] == shown


def form(*parts: bytes) -> dict[str, Any]:
    body = b"".join(b"--edge\r\n" + part + b"\r\n" for part in parts) + b"--edge--\r\n"
    return {"content": body, "headers": {"content-type": "multipart/form-data; boundary=edge"}}


FILE = b'content-disposition: form-data; name="file"; filename="a"\r\n\r\nx'
PURPOSE = b'content-disposition: form-data; name="purpose"\r\n\r\nvision'


@pytest.mark.parametrize(
    ("sent", "status", "param"),
    [
        (form(FILE), 400, "purpose"),
        (form(PURPOSE), 400, "file"),
        (form(), 400, "file"),
        (form(FILE, PURPOSE.replace(b"vision", b"mischief")), 400, "purpose"),
        (form(FILE, PURPOSE, PURPOSE), 400, "purpose"),
        (form(FILE, FILE, PURPOSE), 400, "file"),
        (form(FILE.replace(b'; filename="a"', b""), PURPOSE), 400, "file"),
        (form(FILE, PURPOSE.replace(b"purpose", b"colour")), 400, "colour"),
        (form(PURPOSE.replace(b"vision", b"\xff\xfe"), FILE), 400, None),
        (form(PURPOSE.replace(b"vision", b"x" * 70_000), FILE), 413, None),
        (form(FILE, *([PURPOSE] * 200)), 400, None),
        ({"content": b"rubbish", "headers": form()["headers"]}, 400, None),
        ({"content": form(FILE)["content"][:-20], "headers": form()["headers"]}, 400, None),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, None),
        (
            {"content": b"", "headers": {"content-type": "multipart/form-data; boundary="}},
            400,
            None,
        ),
        ({"json": {"file": "x"}}, 415, None),
        ({"content": b"x"}, 415, None),
    ],
)
def test_a_malformed_form_is_refused(
    http: httpx.Client, sent: dict[str, Any], status: int, param: str | None
) -> None:
    refused = http.post("/files", **sent)
    assert refused.status_code == status, refused.text
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


def test_a_text_of_a_form_is_utf_8_whatever_it_says_it_is(http: httpx.Client) -> None:
    # Minutes of the server, if it were decoded.
    odd = PURPOSE.replace(
        b"\r\n\r\nvision", b"\r\ncontent-type: text/plain; charset=punycode\r\n\r\n"
    )
    refused = http.post("/files", **form(FILE, odd + b"a" * 60_000))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "purpose")
    assert "aaaa" in refused.json()["error"]["message"]
    assert http.post("/files", **form(FILE, odd + b"vision")).status_code == 200


def test_a_file_may_be_larger_than_a_json_body_but_not_endless(serve: Any) -> None:
    limits = {"max_body_bytes": 2048, "max_file_bytes": 100_000, "keep_file_bytes": 150_000}
    with serve(**limits) as server, httpx.Client(base_url=server.api) as http:
        kept = upload(http, b"x" * 100_000)
        assert http.get(f"/files/{kept['id']}/content").content == b"x" * 100_000
        for size in (100_001, 1_000_000):
            sent = {"files": {"file": ("a", b"x" * size)}, "data": {"purpose": "vision"}}
            assert http.post("/files", **sent).status_code == 413
        sent = {"files": {"file": ("a", b"x" * 60_000)}, "data": {"purpose": "vision"}}
        full = http.post("/files", **sent)
        assert (full.status_code, full.json()["error"]["code"]) == (400, "file_quota_exceeded")
        http.delete(f"/files/{kept['id']}")
        assert upload(http, b"x" * 60_000)["bytes"] == 60_000


def test_uploaded_files_outlive_the_server(serve: Any) -> None:
    with serve(store="sqlite") as server, httpx.Client(base_url=server.api) as http:
        file = upload(http)
    with serve(store="sqlite") as server, httpx.Client(base_url=server.api) as http:
        assert http.get(f"/files/{file['id']}").json() == file
        assert http.get(f"/files/{file['id']}/content").content == CONTENT
