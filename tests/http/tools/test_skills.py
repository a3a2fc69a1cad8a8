"""Skills in containers and in shells of clients, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script, text_of
from tests.support.skill_archives import inline, reference, skill

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
