"""Skills in containers and in shells of clients, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.conftest import create, script, text_of
from tests.support.skill_archives import inline, manifest, reference, skill, zipped

from antiphon.domain.errors import SettingsError

Json = dict[str, Any]

ROOT = "/mnt/skills/csv-tools"
READ = f"cat {ROOT}/SKILL.md"


def shell(*commands: str) -> Json:
    return {"call": "shell", "args": {"commands": list(commands)}}


def tool(*skills: Json) -> Json:
    return {"type": "shell", "environment": {"type": "container_auto", "skills": list(skills)}}


def run(client: httpx.Client, model: str, *turns: Any, **fields: Any) -> Json:
    return create(client, model=model, input=script(*turns), **fields)


def outputs(response: Json) -> list[Json]:
    items = [item for item in response["output"] if item["type"] == "shell_call_output"]
    return [output for item in items for output in item["output"]]


def upload(client: httpx.Client, archive: bytes) -> str:
    files = {"files": ("skill.zip", archive, "application/zip")}
    answer = client.post("/skills", files=files)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reference", "inline"])
def test_a_shell_reads_a_skill_and_cannot_change_it(
    containers: httpx.Client, model: str, kind: str
) -> None:
    archive = skill(body="Use awk.", **{"bin/rows.sh": "#!/bin/sh\necho rows\n"})
    sent = inline(archive) if kind == "inline" else reference(upload(containers, archive))
    turn = shell(
        READ,
        f"{ROOT}/bin/rows.sh",
        f"echo no > {ROOT}/SKILL.md",
        f"touch {ROOT}/new",
        f"rm -rf {ROOT}",
        f"chmod 777 {ROOT}/SKILL.md",
        f"mv {ROOT} /mnt/skills/other",
        READ,
    )
    response = run(containers, model, turn, {"say": "ok"}, tools=[tool(sent)])
    first, ran, *refused, last = outputs(response)
    assert first["stdout"].endswith("Use awk.")
    assert ran["stdout"] == "rows\n"
    assert [each["outcome"]["exit_code"] for each in refused if each["outcome"]] != [0] * 5
    for each in refused:
        assert each["outcome"]["exit_code"] != 0
        assert "Read-only file system" in each["stderr"] or "busy" in each["stderr"]
    assert last["stdout"] == first["stdout"]
    assert text_of(response) == "ok"


def prompt_of(response: Json) -> str:
    """Return what the model was shown, with the lines of its texts."""
    return str(response["input_messages"]).replace("\\\\n", "\n").replace("\\n", "\n")


def told(response: Json) -> list[str]:
    """Return the lines that tell the model of its skills."""
    return [line for line in prompt_of(response).splitlines() if "SKILL.md): " in line]


@pytest.mark.slow
def test_the_model_is_told_of_its_skills_in_the_order_of_the_request(
    containers: httpx.Client, model: str
) -> None:
    uploaded = upload(containers, skill("rows"))
    sent = [inline(skill(), "zebra", "Last\n- in the\nalphabet."), reference(uploaded)]
    fields = {"tools": [tool(*sent)], "enable_response_messages": True}
    response = run(containers, model, {"say": "ok"}, **fields)
    zebra, rows = told(response)
    assert "- zebra (/mnt/skills/zebra/SKILL.md): Last - in the alphabet." in zebra
    assert "- rows (/mnt/skills/rows/SKILL.md): Reads CSV files." in rows
    fields["tools"] = [tool(*reversed(sent))]
    assert "rows" in told(run(containers, model, {"say": "ok"}, **fields))[0]
    fields["tools"] = [tool()]
    assert told(run(containers, model, {"say": "ok"}, **fields)) == []


@pytest.mark.slow
def test_the_archive_of_an_inline_skill_is_not_sent_back(
    containers: httpx.Client, model: str
) -> None:
    sent = inline(skill())
    response = run(containers, model, {"say": "ok"}, tools=[tool(sent)])
    [shown] = response["tools"][0]["environment"]["skills"]
    assert shown["source"]["data"] == "<omitted>"
    assert sent["source"]["data"] not in containers.get(f"/responses/{response['id']}").text


@pytest.mark.slow
def test_code_reads_skills_too(containers: httpx.Client, model: str) -> None:
    python = {
        "type": "code_interpreter",
        "container": {"type": "auto", "skills": [inline(skill(body="Use csv."))]},
    }
    code = (
        f"print(open('{ROOT}/SKILL.md').read()[-8:])\n"
        f"try: open('{ROOT}/SKILL.md', 'a')\nexcept OSError as error: print(error.strerror)"
    )
    fields = {
        "tools": [python],
        "include": ["code_interpreter_call.outputs"],
        "enable_response_messages": True,
    }
    response = run(containers, model, {"python": code}, {"say": "ok"}, **fields)
    [output] = response["output"][0]["outputs"]
    text, refusal = output["logs"].splitlines()
    assert text == "Use csv."
    assert refusal in ("Read-only file system", "Permission denied")
    assert len(told(response)) >= 1
    assert response["tools"][0]["container"]["skills"][0]["source"]["data"] == "<omitted>"


@pytest.mark.slow
def test_a_container_that_was_made_with_skills_has_them_and_tells_of_them(
    containers: httpx.Client, model: str
) -> None:
    uploaded = upload(containers, skill(body="Kept."))
    body = {"name": "a", "skills": [reference(uploaded, "1")]}
    container = containers.post("/containers", json=body).json()["id"]
    assert containers.delete(f"/skills/{uploaded}").status_code == 200
    environment = {"type": "container_reference", "container_id": container}
    fields = {
        "tools": [{"type": "shell", "environment": environment}],
        "enable_response_messages": True,
    }
    turn = shell(READ, "kill -9 -1"), shell(READ), {"say": "ok"}
    response = run(containers, model, *turn, **fields)
    first, _, again = outputs(response)
    assert first["stdout"].endswith("Kept.")
    assert again["stdout"].endswith("Kept."), "a restarted container has them, too"
    assert len(told(response)) >= 1
    files = containers.get(f"/containers/{container}/files").json()["data"]
    assert files == []


@pytest.mark.slow
def test_a_conversation_goes_on_in_its_container_while_it_has_the_skills(
    containers: httpx.Client, model: str
) -> None:
    uploaded = upload(containers, skill(body="One."))
    tools = [tool(reference(uploaded))]
    first = run(containers, model, shell("echo kept > f"), {"say": "ok"}, tools=tools)
    assert [each["outcome"] for each in outputs(first)] == [{"type": "exit", "exit_code": 0}]
    turns = shell("cat f", f"tail -n 1 {ROOT}/SKILL.md"), {"say": "ok"}
    for given in (tools, [tool()], [tool(reference(uploaded, "1"))]):
        second = run(containers, model, *turns, tools=given, previous_response_id=first["id"])
        found = [(each["stdout"], each["stderr"]) for each in outputs(second)]
        assert found == [("kept\n", ""), ("One.", "")]
    files = {"files": ("skill.zip", skill(body="Two."), "application/zip")}
    assert containers.post(f"/skills/{uploaded}/versions", files=files).status_code == 200
    tools = [tool(reference(uploaded, "latest"))]
    third = run(containers, model, *turns, tools=tools, previous_response_id=first["id"])
    assert [each["stdout"] for each in outputs(third)] == ["", "Two."]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skills", "param", "status"),
    [
        ("all", "", 400),
        ([1], "", 400),
        ([{"type": "inline"}] * 201, "", 400),
        ([{}], "[0].type", 400),
        ([{"type": "file"}], "[0].type", 400),
        ([{"type": "skill_reference"}], "[0].skill_id", 400),
        ([reference("skill_none")], "[0].skill_id", 404),
        ([{"type": "skill_reference", "skill_id": 7}], "[0].skill_id", 400),
        ([inline(skill()), inline(skill())], "[1]", 400),
        ([inline(skill(), name="Csv")], "[0].name", 400),
        ([inline(skill(), name="../a")], "[0].name", 400),
        ([inline(skill(), description="")], "[0].description", 400),
        ([{**inline(skill()), "source": "a"}], "[0].source", 400),
        ([{**inline(skill()), "source": {"type": "url"}}], "[0].source.type", 400),
        (
            [{**inline(skill()), "source": {"type": "base64", "media_type": "text/plain"}}],
            "[0].source.media_type",
            400,
        ),
        (
            [{**inline(skill()), "source": {**inline(b"")["source"], "data": "?"}}],
            "[0].source.data",
            400,
        ),
        ([inline(b"PK")], "[0].source.data", 400),
        ([inline(zipped({"SKILL.md": manifest(), "../a": ""}))], "[0].source.data", 400),
        ([inline(zipped({"SKILL.md": manifest(), "a": bytes(9_000_000)}))], "", 400),
    ],
)
def test_skills_that_cannot_be_had_are_refused(
    containers: httpx.Client, skills: Any, param: str, status: int
) -> None:
    given = {"type": "shell", "environment": {"type": "container_auto", "skills": skills}}
    asked = {"model": "scripted-chat", "input": "Hi", "tools": [given]}
    answer = containers.post("/responses", json=asked)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == f"tools[0].environment.skills{param}"
    if isinstance(skills, list) and all(isinstance(each, dict) for each in skills):
        answer = containers.post("/containers", json={"name": "a", "skills": skills})
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["param"] == f"skills{param}"


@pytest.mark.slow
def test_a_version_is_the_one_that_a_reference_names(containers: httpx.Client, model: str) -> None:
    uploaded = upload(containers, skill(body="One."))
    for body in ("Two.", "Three."):
        files = {"files": ("skill.zip", skill(body=body), "application/zip")}
        assert containers.post(f"/skills/{uploaded}/versions", files=files).status_code == 200
    for version, body in ((None, "One."), ("2", "Two."), ("latest", "Three.")):
        tools = [tool(reference(uploaded, version))]
        turns = shell(f"tail -n 1 {ROOT}/SKILL.md"), {"say": "ok"}
        assert outputs(run(containers, model, *turns, tools=tools))[0]["stdout"] == body
    assert containers.delete(f"/skills/{uploaded}/versions/2").status_code == 200
    for version, status in (("2", 404), ("4", 404), ("0", 400), ("old", 400)):
        asked = {"model": model, "input": "Hi", "tools": [tool(reference(uploaded, version))]}
        answer = containers.post("/responses", json=asked)
        assert answer.status_code == status
        param = "tools[0].environment.skills[0].version"
        assert answer.json()["error"]["param"] == param


@pytest.mark.slow
def test_two_tools_share_their_skills_and_cannot_disagree(
    containers: httpx.Client, model: str
) -> None:
    def code_with(*skills: Json) -> Json:
        return {"type": "code_interpreter", "container": {"type": "auto", "skills": list(skills)}}

    shared = [tool(inline(skill())), code_with(inline(skill()), inline(skill("rows"), "rows"))]
    fields = {"tools": shared, "enable_response_messages": True}
    response = run(containers, model, shell("ls /mnt/skills"), {"say": "ok"}, **fields)
    assert outputs(response)[0]["stdout"] == "csv-tools\nrows\n"
    assert len(told(response)) == 2, "one tool tells of them, not both"
    other = [tool(inline(skill())), code_with(inline(skill(body="Other.")))]
    asked = {"model": model, "input": "Hi", "tools": other}
    answer = containers.post("/responses", json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools[1].container.skills"


def test_a_shell_of_the_clients_has_skills_that_the_model_is_told_of(
    http: httpx.Client, model: str
) -> None:
    environment = {
        "type": "local",
        "skills": [
            {"name": "Zebra", "description": "Stripes.", "path": "~/skills/zebra/"},
            {"name": "rows", "description": "Rows.", "path": "C:\\skills"},
        ],
    }
    fields = {
        "tools": [{"type": "shell", "environment": environment}],
        "enable_response_messages": True,
    }
    response = run(http, model, shell("cat ~/skills/zebra/SKILL.md"), **fields)
    assert response["output"][0]["type"] == "shell_call"
    assert response["tools"][0]["environment"] == environment
    zebra, rows = told(response)
    assert "- Zebra (~/skills/zebra/SKILL.md): Stripes." in zebra
    assert "rows" in rows


@pytest.mark.parametrize(
    ("skills", "param"),
    [
        ("all", ""),
        ([{"name": "a", "description": "b", "path": "c"}] * 201, ""),
        ([{"name": "a", "description": "b"}], "[0].path"),
        ([{"name": "a", "description": "b", "path": ""}], "[0].path"),
        ([{"name": "a", "description": "b", "path": "c" * 5000}], "[0].path"),
        ([{"name": "a" * 65, "description": "b", "path": "c"}], "[0].name"),
        ([{"description": "b", "path": "c"}], "[0].name"),
        ([{"name": "a", "description": " ", "path": "c"}], "[0].description"),
        ([{"name": "a", "description": "b" * 1025, "path": "c"}], "[0].description"),
    ],
)
def test_skills_of_a_client_that_say_too_little_or_too_much_are_refused(
    http: httpx.Client, skills: Any, param: str
) -> None:
    tools = [{"type": "shell", "environment": {"type": "local", "skills": skills}}]
    asked = {"model": "scripted-chat", "input": "Hi", "tools": tools}
    answer = http.post("/responses", json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"tools[0].environment.skills{param}"


@pytest.mark.slow
def test_every_tenant_may_use_the_operators_skills(serve: Any, tmp_path: Path, model: str) -> None:
    folder = tmp_path / "skills"
    (folder / "csv-tools" / "bin").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "csv-tools/SKILL.md").write_text(manifest(body="Ours."))
    (folder / "csv-tools/bin/a.sh").write_text("#!/bin/sh\necho ran\n")
    given = {"shell": True, "code.cgroup": "off", "code.memory_mb": 1024}
    with (
        serve(**given, **{"code.skills_dir": folder}) as server,
        httpx.Client(base_url=server.api, timeout=20) as http,
    ):
        for version in (None, "1", "latest"):
            tools = [tool(reference("csv-tools", version))]
            turns = shell(f"tail -n 1 {ROOT}/SKILL.md; {ROOT}/bin/a.sh"), {"say": "ok"}
            assert outputs(run(http, model, *turns, tools=tools))[0]["stdout"] == "Ours.ran\n"
        asked = {"model": model, "input": "Hi", "tools": [tool(reference("csv-tools", "2"))]}
        assert http.post("/responses", json=asked).status_code == 404
        assert http.get("/skills").json()["data"] == []
        assert http.get("/skills/csv-tools").status_code == 404


@pytest.mark.parametrize(
    ("files", "because"),
    [
        (None, "does not exist"),
        ({"a/b.txt": ""}, "one SKILL.md"),
        ({"a/SKILL.md": "# Hi"}, "front matter"),
        ({"a/SKILL.md": manifest(name="A")}, "lowercase"),
        ({"a/SKILL.md": manifest(), "b/SKILL.md": manifest()}, "Two skills"),
        ({"a/SKILL.md": manifest(), "a/passwd": "link"}, "a link or a device"),
    ],
)
def test_a_folder_without_valid_skills_keeps_the_server_from_starting(
    serve: Any, tmp_path: Path, files: dict[str, str] | None, because: str
) -> None:
    folder = tmp_path / "skills"
    for name, text in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text == "link":
            path.symlink_to("/etc/passwd")
        else:
            path.write_text(text)
    with pytest.raises(SettingsError, match=because), serve(**{"code.skills_dir": folder}):
        pass


@pytest.mark.slow
def test_a_skill_goes_to_both_of_two_servers_of_one_store(serve: Any, model: str) -> None:
    given = {"store": "sqlite", "shell": True, "code.cgroup": "off", "code.memory_mb": 1024}
    with (
        serve(**given) as one,
        serve(**given) as other,
        OpenAI(base_url=one.api, api_key="x") as client,
        httpx.Client(base_url=other.api, timeout=20) as http,
    ):
        created = client.skills.create(files=("a.zip", skill(body="Here."), "application/zip"))
        response = run(http, model, shell(READ), {"say": "ok"}, tools=[tool(reference(created.id))])
        assert outputs(response)[0]["stdout"].endswith("Here.")
