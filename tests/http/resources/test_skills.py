"""`/v1/skills` over HTTP, with the official SDK and without."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.support.skill_archives import manifest, skill, zipped

Json = dict[str, Any]
ZIP = "application/zip"


@pytest.fixture
def client(serve: Any) -> Iterator[OpenAI]:
    with serve(store="sqlite") as server, OpenAI(base_url=server.api, api_key="x") as client:
        yield client


@pytest.fixture
def http(client: OpenAI) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=str(client.base_url), timeout=20) as http:
        yield http


def names_in(archive: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


def send(http: httpx.Client, *parts: tuple[str, Any], path: str = "/skills") -> Json:
    answer = http.post(path, files=list(parts))
    assert answer.status_code == 400, answer.text
    error: Json = answer.json()["error"]
    return error


def test_a_folder_becomes_a_skill(client: OpenAI) -> None:
    files = [("csv-tools/SKILL.md", manifest().encode()), ("csv-tools/a/b.sh", b"#!/bin/sh\n")]
    created = client.skills.create(files=files)
    assert created.id.startswith("skill_")
    assert created.object == "skill"
    assert (created.name, created.description) == ("csv-tools", "Reads CSV files.")
    assert (created.default_version, created.latest_version) == ("1", "1")
    assert client.skills.retrieve(created.id) == created
    content = client.skills.content.retrieve(created.id)
    assert content.response.headers["content-type"] == ZIP
    assert "attachment" in content.response.headers["content-disposition"]
    assert names_in(content.read()) == ["SKILL.md", "a/b.sh"]


@pytest.mark.parametrize("name", ["skill.zip", "blob"])
def test_an_archive_is_kept_as_it_came(client: OpenAI, name: str) -> None:
    archive = skill(a="1")
    created = client.skills.create(files=(name, archive, ZIP))
    assert client.skills.content.retrieve(created.id).read() == archive


def test_a_single_file_may_be_a_skill(client: OpenAI) -> None:
    created = client.skills.create(files=("SKILL.md", manifest(name="one").encode()))
    assert created.name == "one"


def test_versions_are_numbered_and_one_of_them_is_the_default(client: OpenAI) -> None:
    created = client.skills.create(files=("a.zip", skill(), ZIP))
    second = client.skills.versions.create(created.id, files=("a.zip", skill("other"), ZIP))
    assert (second.version, second.skill_id, second.name) == ("2", created.id, "other")
    assert second.object == "skill.version"
    now = client.skills.retrieve(created.id)
    assert (now.name, now.default_version, now.latest_version) == ("csv-tools", "1", "2")
    third = client.skills.versions.create(
        created.id, files=("a.zip", skill("third"), ZIP), default=True
    )
    now = client.skills.retrieve(created.id)
    assert (now.name, now.default_version, now.latest_version) == ("third", "3", "3")
    assert client.skills.update(created.id, default_version="2").name == "other"
    assert client.skills.update(created.id, default_version="latest").default_version == "3"
    listed = client.skills.versions.list(created.id, order="asc")
    assert [each.version for each in listed] == ["1", "2", "3"]
    page = client.skills.versions.list(created.id, limit=1, after=third.id)
    assert [each.version for each in page.data] == ["2"]
    assert page.has_more
    assert client.skills.versions.retrieve("2", skill_id=created.id) == second
    assert client.skills.versions.retrieve("latest", skill_id=created.id) == third
    content = client.skills.versions.content.retrieve("2", skill_id=created.id)
    assert names_in(content.read()) == ["other/SKILL.md"]


def test_what_is_deleted_is_gone(client: OpenAI) -> None:
    created = client.skills.create(files=("a.zip", skill(), ZIP))
    client.skills.versions.create(created.id, files=("a.zip", skill(), ZIP))
    with pytest.raises(openai.BadRequestError, match="default version"):
        client.skills.versions.delete("1", skill_id=created.id)
    deleted = client.skills.versions.delete("2", skill_id=created.id)
    assert (deleted.version, deleted.deleted, deleted.object) == (
        "2",
        True,
        "skill.version.deleted",
    )
    with pytest.raises(openai.NotFoundError):
        client.skills.versions.retrieve("2", skill_id=created.id)
    gone = client.skills.delete(created.id)
    assert (gone.id, gone.deleted, gone.object) == (created.id, True, "skill.deleted")
    for ask in (client.skills.retrieve, client.skills.delete, client.skills.content.retrieve):
        with pytest.raises(openai.NotFoundError):
            ask(created.id)
    assert client.skills.list().data == []


def test_lists_have_pages_and_files_do_not_show_skills(client: OpenAI) -> None:
    ids = [client.skills.create(files=("a.zip", skill(), ZIP)).id for _ in range(3)]
    assert [each.id for each in client.skills.list(order="asc", limit=2)] == ids
    assert [each.id for each in client.skills.list(after=ids[2]).data] == [ids[1], ids[0]]
    assert client.files.list().data == []
    with pytest.raises(openai.BadRequestError) as refused:
        client.skills.list(after="skill_none")
    assert refused.value.param == "after"


@pytest.mark.parametrize("version", ["0", "-1", "01", "1.0", "", "newest", "²", "9" * 40])
def test_a_version_is_a_positive_integer_or_latest(
    client: OpenAI, http: httpx.Client, version: str
) -> None:
    created = client.skills.create(files=("a.zip", skill(), ZIP))
    answer = http.post(f"/skills/{created.id}", json={"default_version": version})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "default_version"
    assert "positive integer" in answer.json()["error"]["message"]


def test_a_default_version_must_be_there(client: OpenAI, http: httpx.Client) -> None:
    created = client.skills.create(files=("a.zip", skill(), ZIP))
    answer = http.post(f"/skills/{created.id}", json={"default_version": "2"})
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "default_version"
    answer = http.post(f"/skills/{created.id}", json={"default_version": 2})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("parts", "param", "reason"),
    [
        ([("file", ("a.zip", skill(), ZIP))], "file", "'files'"),
        ([("files", (None, "text"))], "files", "file name"),
        ([("files", ("a.zip", b"PK", ZIP))], "files", "no zip archive"),
        ([("files", ("a.zip", b"", ZIP))], "files", "no zip archive"),
        ([("files", ("a.zip", zipped({"a": ""}), ZIP))], "files", "one SKILL.md"),
        ([("files[]", ("a/b", b"")), ("files[]", ("c/SKILL.md", b""))], "files", "one SKILL.md"),
        ([("files[]", ("../SKILL.md", manifest().encode()))], "files", "no valid path"),
        (
            [("files[]", ("SKILL.md", manifest().encode()))] * 2,
            "files",
            "two files 'SKILL.md'",
        ),
        (
            [("files", (f"{number}", b"")) for number in range(505)],
            "files",
            "500 files",
        ),
        (
            [("files", ("SKILL.md", manifest().encode())), ("default", (None, "true"))],
            "default",
            "'files'",
        ),
    ],
)
def test_uploads_that_are_no_skill_are_refused(
    http: httpx.Client, parts: list[tuple[str, Any]], param: str, reason: str
) -> None:
    error = send(http, *parts)
    assert error["param"] == param
    assert reason in error["message"]
    assert http.get("/skills").json()["data"] == []


def test_an_upload_is_a_form_with_files(client: OpenAI, http: httpx.Client) -> None:
    assert http.post("/skills", json={"files": "a"}).status_code == 415
    assert http.post("/skills", content=b"", headers={"content-type": ZIP}).status_code == 415
    boundary = {"content-type": "multipart/form-data; boundary=a"}
    error = http.post("/skills", content=b"--a--\r\n", headers=boundary).json()["error"]
    assert (error["param"], error["code"]) == ("files", "missing_required_parameter")
    assert http.post("/skills", content=b"--a\r\nx", headers=boundary).status_code == 400
    many = [("files", (f"{number}", b"")) for number in range(600)]
    assert "cannot be read" in send(http, *many)["message"]
    created = client.skills.create(files=("a.zip", skill(), ZIP))
    flagged = [("files", ("a.zip", skill(), ZIP)), ("default", (None, "yes"))]
    error = send(http, *flagged, path=f"/skills/{created.id}/versions")
    assert (error["param"], error["code"]) == ("default", "invalid_value")


def test_an_archive_is_no_larger_than_a_file_may_be(serve: Any) -> None:
    with serve(max_file_bytes=1000) as server, httpx.Client(base_url=server.api) as http:
        files = {"files": ("a.zip", bytes(2_000_000), ZIP)}
        assert http.post("/skills", files=files).status_code == 413


def test_two_servers_of_one_store_have_the_same_skills(serve: Any) -> None:
    with (
        serve(store="sqlite") as one,
        serve(store="sqlite") as other,
        OpenAI(base_url=one.api, api_key="x") as here,
        OpenAI(base_url=other.api, api_key="x") as there,
    ):
        created = here.skills.create(files=("a.zip", skill(), ZIP))
        assert there.skills.retrieve(created.id) == created
        assert there.skills.content.retrieve(created.id).read() == skill()
        there.skills.versions.create(created.id, files=("a.zip", skill(), ZIP), default=True)
        assert here.skills.retrieve(created.id).default_version == "2"
        there.skills.delete(created.id)
        with pytest.raises(openai.NotFoundError):
            here.skills.retrieve(created.id)
