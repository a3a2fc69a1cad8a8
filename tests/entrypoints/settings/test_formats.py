"""`antiphon formats`, run in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.entrypoints.commands.formats import MAX_SHOWN_CHARACTERS

pytestmark = pytest.mark.slow

MODULE = (sys.executable, "-m", "antiphon.entrypoints.cli")
HERMES = """
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}\x1b[0m
{% endfor %}
"""


def antiphon(*arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")}
    return subprocess.run(
        [*MODULE, "formats", *arguments],
        env={**inherited, "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
        capture_output=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "chat_template.jinja"
    file.write_text(HERMES)
    return file


def test_the_formats_are_listed_with_their_models() -> None:
    listed = antiphon()
    assert (listed.returncode, listed.stderr) == (0, "")
    rows = {line.split()[0]: line for line in listed.stdout.splitlines()}
    assert "gpt-oss" in rows["harmony"]
    assert "Hermes" in rows["chat:hermes"]
    as_json = {row["format"]: row["models"] for row in json.loads(antiphon("--json").stdout)}
    assert as_json["chat:hermes"] == FAMILIES["hermes"].models
    assert set(as_json) == {"harmony", *(f"chat:{name}" for name in FAMILIES)} - {"chat:scripted"}


def test_every_family_names_its_models() -> None:
    assert [name for name, row in FAMILIES.items() if not row.models] == ["scripted"]


def test_a_check_says_what_is_recognized_why_and_whether_calls_are_read(template: Path) -> None:
    checked = antiphon("check", str(template))
    assert (checked.returncode, checked.stderr) == (0, "")
    lines = checked.stdout.splitlines()
    assert lines[0] == "chat_template.jinja: chat:hermes (recognized)"
    assert "  - the template writes a call exactly as this family does" in lines
    assert "  - several calls in a message: yes" in lines
    assert "  | user: How warm is it on the Rhine?\\x1b[0m" in lines
    assert '  | {"name": "get_weather", "arguments": {"city": "Bonn", "days": 3}}' in lines
    assert lines[-1] == "Calls are read back."


def test_a_check_fails_where_calls_are_not_read(template: Path) -> None:
    template.write_text("{{ messages }}" + "x" * MAX_SHOWN_CHARACTERS)
    checked = antiphon("check", str(template))
    assert checked.returncode == 1
    lines = checked.stdout.splitlines()
    assert lines[0] == "chat_template.jinja: chat:plain (recognized)"
    assert lines[-1].startswith("NO WAY OF CALLING TOOLS IS RECOGNIZED")
    assert any(line.endswith(" characters …") for line in lines)


def test_a_check_fails_where_the_template_cannot_write_calls(template: Path) -> None:
    refusal = "{% if messages | length > 2 %}{{ raise_exception('No calls.') }}{% endif %}"
    template.write_text(refusal + HERMES)
    checked = antiphon("check", str(template), "--format", "chat:hermes")
    assert (checked.returncode, checked.stderr) == (1, "")
    assert "No calls." in checked.stdout
    assert "name a better template with --chat-template" in checked.stdout.splitlines()[-1]


def test_a_check_for_scripts_is_json(template: Path) -> None:
    report = json.loads(
        antiphon("check", str(template), "--format", "chat:mistral", "--json").stdout
    )
    assert (report["format"], report["is_chosen"], report["reads_call"]) == (
        "chat:mistral",
        True,
        True,
    )
    assert report["capabilities"]["images"] is False


def test_what_cannot_be_read_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    checked = antiphon("check", str(tmp_path))
    assert (checked.returncode, checked.stdout) == (2, "")
    assert checked.stderr.startswith(f"antiphon: '{tmp_path}' has no chat template.")
    assert len(checked.stderr.splitlines()) == 1
