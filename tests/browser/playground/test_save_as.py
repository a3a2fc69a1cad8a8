"""A turn as code and as a script: what is copied does what the page did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.browser.browser import Page
from tests.browser.playground.forms import EVIL, PNG, ask, made, open_playground, transfer
from tests.http.conftest import create, script, text_of, wait_until

pytestmark = pytest.mark.browser

WORDS = 'It\'s "noon" in $HOME, `date` and \\n é 東京.\nJSON\n'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"__proto__": {"type": "string", "description": WORDS, "nullable": None}},
    "additionalProperties": False,
}
OPENAI = """\
export default class { constructor(options) {
  this.responses = { create: (body) => ({ output_text: JSON.stringify({ options, body }) }) };
} }
"""


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def ask_with_everything(page: Page) -> str:
    """Ask with an image, a file, a tool, a schema and parameters. Return the id of the answer."""
    open_playground(page)
    page.click_text("Add a function")
    page.fill(".function input", "get_time")
    page.fill(".function textarea.code", json.dumps(PARAMETERS))
    page.fill("#schema", json.dumps(SCHEMA))
    page.fill("#instructions", WORDS)
    page.fill("#seed", "7")
    page.fill("#temperature", "0")
    page.click("#effort option[value='low']")
    page.click("#tool-choice option[value='none']")  # so that it answers in the schema
    transfer(page, "paste", ("dot.png", "image/png", PNG), (f"it's {EVIL}.txt", "", WORDS.encode()))
    page.wait(lambda: len(page.all(".chip")) == 2)
    ask(page, WORDS)
    return made(page)


def copied(page: Page, form: str) -> str:
    if not page.all("dialog"):
        page.click_text("Save this turn as…")
    page.click_text(form, "dialog button")
    page.wait(lambda: page.all("dialog button[aria-pressed=true]")[0].text == form)
    return str(page.run("return document.querySelector('#copied').textContent"))


def environment(key: str) -> dict[str, str]:
    return {**os.environ, "ANTIPHON_API_KEY": key}


def asked(api: httpx.Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the newest response and its input, without what each has of its own."""
    newest = api.get("/responses?limit=1").json()["data"][0]["id"]
    response = api.get(f"/responses/{newest}").json()
    items = api.get(f"/responses/{newest}/input_items?order=asc").json()["data"]
    own = ("id", "created_at", "completed_at", "output", "usage", "metrics")
    settings = {name: value for name, value in response.items() if name not in own}
    return settings, [{**item, "id": ""} for item in items]


@pytest.mark.parametrize("form", ["curl", "Python"])
def test_code_makes_the_same_request(
    page: Page, api: httpx.Client, keys: dict[str, str], form: str
) -> None:
    answer = ask_with_everything(page)
    wanted = asked(api)
    code = copied(page, form)
    assert keys["blue"] not in code
    command = ["sh", "-c", code] if form == "curl" else [sys.executable, "-c", code]
    ran = subprocess.run(
        command,
        env=environment(keys["blue"]),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    output = json.loads(ran.stdout)
    assert "city" in (output if form == "Python" else json.loads(text_of(output)))
    assert api.get("/responses?limit=1").json()["data"][0]["id"] != answer
    assert asked(api) == wanted


def test_javascript_makes_the_same_request_as_curl(
    page: Page, keys: dict[str, str], tmp_path: Path
) -> None:
    ask_with_everything(page)
    body = copied(page, "curl").partition("<<'JSON'\n")[2].rstrip().removesuffix("JSON")
    folder = tmp_path / "node_modules" / "openai"
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"type": "module", "main": "index.js"}')
    (folder / "index.js").write_text(OPENAI)
    (tmp_path / "request.mjs").write_text(copied(page, "JavaScript"), encoding="utf-8")
    ran = subprocess.run(
        ["node", "request.mjs"],
        cwd=tmp_path,
        env=environment("a-key"),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    sent = json.loads(ran.stdout)
    assert sent["body"] == json.loads(body)
    assert sent["options"] == {"baseURL": f"{page.url}/v1", "apiKey": "a-key"}


def test_a_turn_in_the_background_is_named_by_its_code(page: Page) -> None:
    open_playground(page)
    page.click("#background")
    ask(page, "hi")
    made(page)
    for form in ("Python", "JavaScript"):
        assert "(response.id, response.status)" in copied(page, form)


def test_a_script_makes_the_scripted_model_answer_the_same(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    ask(page, script([{"think": "Hm."}, {"say": f"{WORDS} {EVIL}"}]))
    answer = api.get(f"/responses/{made(page)}").json()
    again = create(api, model="scripted-chat", input=copied(page, "Script for the scripted model"))
    assert text_of(again) == text_of(answer)
    assert [item["type"] for item in again["output"]] == ["reasoning", "message"]


def test_code_is_saved_as_a_file(page: Page, tmp_path: Path) -> None:
    open_playground(page)
    ask(page, "hi")
    made(page)
    allow = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allow)
    code = copied(page, "Python")
    page.click_text("Save as a file")
    file = tmp_path / "request.py"
    wait_until(file.exists)
    assert file.read_text(encoding="utf-8") == code


def test_what_is_not_set_is_not_sent(page: Page) -> None:
    open_playground(page)
    page.fill("#input", "hi")
    page.click_text("Save as…")
    page.wait(lambda: page.all("#copied"))
    body = page.text("#copied").partition("<<'JSON'\n")[2].rstrip().removesuffix("JSON")
    assert json.loads(body) == {"model": "scripted-chat", "input": "hi"}
    assert "Script for the scripted model" not in page.text("dialog")
