"""Containers and their files over HTTP, mostly by the official client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.http.access.test_auth import new_key
from tests.http.conftest import create, frames, script

pytestmark = pytest.mark.slow

Json = dict[str, Any]

SHELL = "shell"


@pytest.fixture
def client(container_server: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=container_server.api, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def container(client: OpenAI) -> Iterator[str]:
    made = client.containers.create(name="mine")
    yield made.id
    client.containers.delete(made.id)


def in_shell(container: str) -> Json:
    environment = {"type": "container_reference", "container_id": container}
    return {"type": "shell", "environment": environment}


def run(http: httpx.Client, container: str, command: str) -> Json:
    asked = script({"call": "shell", "args": {"commands": [command]}}, {"say": "ok"})
    response = create(
        http, model="scripted-chat", input=asked, tools=[in_shell(container)], store=False
    )
    output: Json = response["output"][1]["output"][0]
    return output


def test_a_container_is_made_found_listed_and_ended(client: OpenAI) -> None:
    made = client.containers.create(
        name="data", expires_after={"anchor": "last_active_at", "minutes": 10}, memory_limit="1g"
    )
    assert made.id.startswith("cntr_")
    assert (made.object, made.status, made.name) == ("container", "running", "data")
    assert made.expires_after is not None
    assert made.expires_after.minutes == 10
    assert made.network_policy is not None
    assert (made.memory_limit, made.network_policy.type) == ("1g", "disabled")
    assert client.containers.retrieve(made.id).id == made.id
    assert [each.id for each in client.containers.list(name="data")] == [made.id]
    client.containers.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="another server has it"):
        client.containers.retrieve(made.id)
    assert [each.id for each in client.containers.list(name="data")] == []


def test_lists_come_in_pages(client: OpenAI) -> None:
    made = [client.containers.create(name="paged").id for _ in range(3)]
    try:
        newest = client.containers.list(name="paged", limit=2)
        assert [each.id for each in newest.data] == made[:0:-1]
        assert newest.has_more
        assert [each.id for each in newest] == made[::-1]
        oldest = client.containers.list(name="paged", order="asc", after=made[0])
        assert [each.id for each in oldest.data] == made[1:]
    finally:
        for each in made:
            client.containers.delete(each)


def test_files_go_in_and_out(client: OpenAI, container: str, containers: httpx.Client) -> None:
    given = client.containers.files.create(container, file=("numbers.csv", b"1,2\n3,4\n"))
    assert given.id.startswith("cfile_")
    assert (given.path, given.bytes, given.source) == ("/mnt/data/numbers.csv", 8, "user")
    assert (given.object, given.container_id) == ("container.file", container)
    made = run(containers, container, "mkdir out; rev numbers.csv > out/back.csv")
    assert made["outcome"]["exit_code"] == 0
    [written] = [each for each in client.containers.files.list(container) if each.id != given.id]
    assert (written.path, written.source) == ("/mnt/data/out/back.csv", "assistant")
    assert (
        client.containers.files.content.retrieve(written.id, container_id=container).read()
        == b"2,1\n4,3\n"
    )
    found = client.containers.files.retrieve(written.id, container_id=container)
    assert found.model_dump() == written.model_dump()
    client.containers.files.delete(written.id, container_id=container)
    assert [each.id for each in client.containers.files.list(container)] == [given.id]


def test_an_uploaded_file_is_copied(client: OpenAI, container: str) -> None:
    uploaded = client.files.create(file=("a.txt", b"hello"), purpose="user_data")
    given = client.containers.files.create(container, file_id=uploaded.id)
    assert (given.path, given.bytes) == ("/mnt/data/a.txt", 5)
    begun = client.containers.create(name="with files", file_ids=[uploaded.id])
    assert [each.path for each in client.containers.files.list(begun.id)] == ["/mnt/data/a.txt"]
    client.containers.delete(begun.id)
    with pytest.raises(openai.NotFoundError):
        client.containers.files.create(container, file_id="file-none")


def test_files_that_exceed_a_new_containers_disk_are_refused(
    client: OpenAI, containers: httpx.Client, model: str
) -> None:
    large = client.files.create(file=("large.bin", bytes(5 * 1024**2)), purpose="user_data").id
    assert client.containers.create(name="one", file_ids=[large]).status == "running"
    with pytest.raises(openai.BadRequestError, match="8 MB") as refused:
        client.containers.create(name="two", file_ids=[large, large])
    assert refused.value.param == "file_ids"
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [large] * 50}}
    answer = containers.post("/responses", json={"model": model, "input": "x", "tools": [tool]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (
        400,
        "tools[0].container.file_ids",
    )


def test_a_large_file_comes_in_pieces(
    client: OpenAI, container: str, containers: httpx.Client
) -> None:
    content = bytes(range(256)) * 20_000  # 5 MB: three pieces
    given = client.containers.files.create(container, file=("large.bin", content))
    assert given.bytes == len(content)
    path = f"/containers/{container}/files/{given.id}/content"
    answer = containers.get(path)
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "attachment" in answer.headers["content-disposition"]


def test_a_file_that_does_not_fit_is_refused(client: OpenAI, container: str) -> None:
    with pytest.raises(openai.BadRequestError, match="File too large") as refused:
        client.containers.files.create(container, file=("large.bin", bytes(9 * 1024**2)))
    assert refused.value.param == "file"
    assert list(client.containers.files.list(container)) == []


def test_an_id_of_a_file_stays_the_same(
    client: OpenAI, container: str, containers: httpx.Client
) -> None:
    given = client.containers.files.create(container, file=("a.txt", b"1"))
    run(containers, container, "echo more >> a.txt")
    assert [each.id for each in client.containers.files.list(container)] == [given.id]


@pytest.mark.parametrize(
    "command",
    [
        "ln -s /usr/bin/bash out.png",
        "ln -s /proc/1/environ out.png",
        "mkfifo out.png",
        "mkdir out.png",
        "touch $'\\xff\\xfe'",
    ],
)
def test_only_regular_files_are_listed(
    client: OpenAI, container: str, containers: httpx.Client, command: str
) -> None:
    assert run(containers, container, command)["outcome"]["exit_code"] == 0
    assert list(client.containers.files.list(container)) == []


def test_a_file_that_became_a_link_is_not_followed(
    client: OpenAI, container: str, containers: httpx.Client
) -> None:
    given = client.containers.files.create(container, file=("a.txt", b"1"))
    run(containers, container, "ln -sf /usr/bin/bash a.txt")
    with pytest.raises(openai.NotFoundError):
        client.containers.files.content.retrieve(given.id, container_id=container)
    with pytest.raises(openai.BadRequestError):
        client.containers.files.create(container, file=("a.txt", b"1"))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("a\\b\\c.txt", "c.txt"),
        ("x\r\ny.txt", "xy.txt"),
        ("ü ß.txt", "ü ß.txt"),
    ],
)
def test_of_a_name_only_the_last_part_counts(
    client: OpenAI, container: str, name: str, kept: str
) -> None:
    given = client.containers.files.create(container, file=(name, b"1"))
    assert given.path == f"/mnt/data/{kept}"


@pytest.mark.parametrize("name", ["..", ".", 300 * "ü"])
def test_invalid_file_names_are_refused(client: OpenAI, container: str, name: str) -> None:
    with pytest.raises(openai.BadRequestError, match="is not a valid file name"):
        client.containers.files.create(container, file=(name, b"1"))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a", "memory_limit": "4g"}, "memory_limit"),
        ({"name": "a", "memory_limit": "2g"}, "memory_limit"),
        ({"name": "a", "network_policy": {"type": "allowlist"}}, "network_policy"),
        ({"name": "a", "skills": [{"type": "inline"}]}, "skills[0].name"),
        ({"name": "a", "file_ids": ["file-none"]}, "file_ids[0]"),
        ({"name": "a", "file_ids": ["x"] * 51}, "file_ids"),
        ({"name": "a", "expires_after": {"anchor": "created_at", "minutes": 1}}, "expires_after"),
        (
            {"name": "a", "expires_after": {"anchor": "last_active_at", "minutes": 0}},
            "expires_after.minutes",
        ),
        (
            {"name": "a", "expires_after": {"anchor": "last_active_at", "minutes": 21}},
            "expires_after.minutes",
        ),
    ],
)
def test_containers_that_cannot_be_had_are_refused(
    containers: httpx.Client, body: Json, param: str
) -> None:
    answer = containers.post("/containers", json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param
    assert containers.get("/containers", params={"name": "a"}).json()["data"] == []


@pytest.mark.parametrize(
    "path",
    ["", "/files", "/files/cfile_none", "/files/cfile_none/content"],
)
def test_what_is_not_there_is_a_404(containers: httpx.Client, container: str, path: str) -> None:
    assert containers.get(f"/containers/cntr_none{path}").status_code == 404
    if "cfile" in path:
        assert containers.get(f"/containers/{container}{path}").status_code == 404


def test_one_container_too_many_closes_the_one_that_was_idle_longest(
    client: OpenAI,
) -> None:
    made = [client.containers.create(name="many").id for _ in range(9)]
    left = [each.id for each in client.containers.list(name="many", order="asc")]
    assert left == made[1:]
    for each in left:
        client.containers.delete(each)


@pytest.mark.one_process
def test_a_container_is_its_tenants_alone(
    serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    folder = tmp_path_factory.mktemp("tenants")
    file = folder / "keys.toml"
    keys = [new_key(file, tenant) for tenant in ("a", "b")]
    given = {"code_interpreter": True, "code.per_tenant": 1}
    with serve_from(folder, auth="on", keys_file=file, **given) as served:
        mine, other = (OpenAI(base_url=served.api, api_key=key, max_retries=0) for key in keys)
        with mine, other:
            made = mine.containers.create(name="mine")
            given = mine.containers.files.create(made.id, file=("a.txt", b"1"))
            assert list(other.containers.list()) == []
            for use in (
                lambda: other.containers.retrieve(made.id),
                lambda: other.containers.delete(made.id),
                lambda: other.containers.files.list(made.id),
                lambda: other.containers.files.create(made.id, file=("b.txt", b"1")),
                lambda: other.containers.files.retrieve(given.id, container_id=made.id),
                lambda: other.containers.files.content.retrieve(given.id, container_id=made.id),
                lambda: other.containers.files.delete(given.id, container_id=made.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    use()
            assert mine.containers.retrieve(made.id).id == made.id
            no_more_than_there_may_be(mine, made.id)


def no_more_than_there_may_be(client: OpenAI, container: str) -> None:
    """While the one container that there may be is in use, there is no other."""
    begun = client.responses.create(
        model="scripted-chat",
        input=script({"python": "import time; time.sleep(60)"}),
        tools=[{"type": "code_interpreter", "container": container}],
        background=True,
        stream=True,
    )
    response_id = next(event.response.id for event in begun if event.type == "response.created")
    with pytest.raises(openai.APITimeoutError):  # who asks has to wait, once the call has begun
        while True:
            client.with_options(timeout=0.3).containers.files.list(container)
    with pytest.raises(openai.RateLimitError, match="in use"):
        client.containers.create(name="another")
    client.responses.cancel(response_id)


def test_a_server_that_runs_nothing_has_none(http: httpx.Client) -> None:
    assert http.get("/containers").json()["data"] == []
    refused = http.post("/containers", json={"name": "a"})
    assert refused.status_code == 400
    assert "no containers" in refused.json()["error"]["message"]


def test_a_message_cites_the_files_that_code_has_written(
    containers: httpx.Client, client: OpenAI, model: str
) -> None:
    said = "Here: [plot](sandbox:/mnt/data/out.txt), not sandbox:/mnt/data/none, see"
    last = " sandbox:/mnt/data/out.txt"
    write = {"call": "shell", "args": {"commands": ["echo 1 > out.txt"]}}
    body = {
        "model": model,
        "input": script(write, {"say": said + last}),
        "tools": [{"type": "shell", "environment": {"type": "container_auto"}}],
    }
    whole = create(containers, **body)["output"]
    events = frames(containers.post("/responses", json={**body, "stream": True}).text)
    for call, _, message in (whole, events[-1]["response"]["output"]):
        [part] = message["content"]
        container = call["environment"]["container_id"]
        [file] = client.containers.files.list(container)
        places = [part["text"].index("sandbox:"), len(said) + 1]
        assert part["annotations"] == [
            {
                "type": "container_file_citation",
                "container_id": container,
                "file_id": file.id,
                "filename": "out.txt",
                "start_index": start,
                "end_index": start + len("sandbox:/mnt/data/out.txt"),
            }
            for start in places
        ]
        assert (
            client.containers.files.content.retrieve(file.id, container_id=container).text == "1\n"
        )
