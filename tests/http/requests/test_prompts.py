"""Prompt templates: what a request leaves open, filled in before everything else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create as create_response

from antiphon.domain.errors import SettingsError
from antiphon.domain.requests.prompt_templates import SETTABLE

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "prompts.md"
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAADs="
IMAGE = {"type": "input_image", "image_url": PIXEL, "detail": "low"}
WEATHER = {"type": "function", "name": "get_weather", "description": "Current weather."}

TEMPLATES = {
    "plain/1.toml": 'model = "scripted-chat"\ninstructions = "old"',
    "plain/9.toml": 'model = "scripted-chat"\ninstructions = "older"',
    "plain/10.toml": 'model = "scripted-chat"\ninstructions = "new"',
    "plain/README.md": "no template",
    "said/v1.toml": """
        instructions = "Talk to {{name}} as {{ name }} does. {{not a name}} {{}}"
        temperature = 0.25
        max_output_tokens = 64
        [[tools]]
        type = "function"
        name = "get_weather"
        [[input]]
        role = "developer"
        content = "Know {{fact}}."
        [[input]]
        role = "user"
        content = [{type = "input_text", text = "See {{thing}} and {{thing}}!"}]
    """,
    "text/1.toml": 'input = "Say {{word}}"',
    "assistant/1.toml": '[[input]]\nrole = "assistant"\ncontent = "I said {{word}}"',
    "script/1.toml": 'input = "{{task}}"',
}


def write(folder: Path, templates: dict[str, str] = TEMPLATES) -> Path:
    for name, text in templates.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve_from: Any) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prompts")
    (folder / "outside").mkdir()
    (folder / "outside" / "1.toml").write_text('instructions = "secret"')
    with serve_from(folder, prompts_dir=write(folder / "templates")) as server:
        yield server.api


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


def ask(http: httpx.Client, prompt: dict[str, Any], **body: Any) -> httpx.Response:
    return http.post("/responses", json={"prompt": prompt, **body})


def given(http: httpx.Client, response: dict[str, Any]) -> list[dict[str, Any]]:
    """What the model was given, by the items that were kept."""
    path = f"/responses/{response['id']}/input_items"
    found: list[dict[str, Any]] = http.get(path, params={"order": "asc"}).json()["data"]
    return found


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_the_page_on_templates_is_true(serve: Callable[..., Any], tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    [template] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    [body] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    folder = write(tmp_path / "prompts", {"support/1.toml": template})
    with serve(prompts_dir=folder) as server, httpx.Client(base_url=server.api) as http:
        response = create_response(http, **json.loads(body))
        developer, user = given(http, response)
    assert response["model"] == "scripted"
    assert response["instructions"] == "You answer customers of Tea & Leaves. Be brief."
    assert (response["max_output_tokens"], response["temperature"]) == (500, 0)
    assert response["reasoning"]["effort"] == "low"
    assert response["prompt"] == {**json.loads(body)["prompt"], "version": "1"}
    assert developer["content"][0]["text"] == "The customer's name is Ada."
    assert [part["type"] for part in user["content"]] == ["input_text", "input_image", "input_text"]
    assert user["content"][2]["text"] == " What do you say?"


def test_the_settable_fields_of_the_page_are_those_of_the_code() -> None:
    told = PAGE.read_text(encoding="utf-8").partition("A template can set ")[2]
    assert set(re.findall(r"`(\w+)`", told.partition(".")[0])) == SETTABLE


@pytest.mark.parametrize(
    ("version", "instructions", "used"),
    [(None, "new", "10"), ("1", "old", "1"), ("9", "older", "9")],
)
def test_the_newest_version_is_used_unless_one_is_named(
    http: httpx.Client, version: str | None, instructions: str, used: str
) -> None:
    response = ask(http, {"id": "plain", "version": version}, input="hi").json()
    assert (response["instructions"], response["prompt"]["version"]) == (instructions, used)
    assert http.get(f"/responses/{response['id']}").json() == response


def test_texts_and_parts_stand_for_placeholders(http: httpx.Client, model: str) -> None:
    variables = {
        "name": "Ada",
        "fact": {"type": "input_text", "text": "it"},
        "thing": IMAGE,
    }
    prompt = {"id": "said", "variables": variables}
    response = ask(http, prompt, model=model, input="mine", tool_choice="none").json()
    assert response["instructions"] == "Talk to Ada as Ada does. {{not a name}} {{}}"
    assert (response["temperature"], response["max_output_tokens"]) == (0.25, 64)
    assert [tool["name"] for tool in response["tools"]] == ["get_weather"]
    developer, user, mine = given(http, response)
    assert (developer["role"], developer["content"][0]["text"]) == ("developer", "Know it.")
    shown = [part.get("text", part["type"]) for part in user["content"]]
    assert shown == ["See ", "input_image", " and ", "input_image", "!"]
    assert user["content"][1] == IMAGE
    assert mine["content"][0]["text"] == "mine"


def test_variables_in_values_are_not_expanded(http: httpx.Client, model: str) -> None:
    prompt = {"id": "text", "variables": {"word": "{{word}} {{other}}"}}
    response = ask(http, prompt, model=model).json()
    assert response["output"][0]["content"][0]["text"] == "Echo: Say {{word}} {{other}}"


def test_the_request_overrides_the_template(http: httpx.Client) -> None:
    own = {
        "model": "scripted-harmony",
        "instructions": "mine",
        "temperature": 1.5,
        "tools": [],
    }
    variables = {"name": "unused", "fact": "f", "thing": "t"}
    response = ask(http, {"id": "said", "variables": variables}, **own).json()
    assert {name: response[name] for name in own} == own
    assert response["max_output_tokens"] == 64
    del variables["name"]  # which only the instructions need
    assert ask(http, {"id": "said", "variables": variables}, **own).status_code == 200


def test_a_count_is_what_a_run_is_charged_for(http: httpx.Client, model: str) -> None:
    variables = {"name": "Ada", "fact": "f", "thing": IMAGE}
    body = {"model": model, "prompt": {"id": "said", "variables": variables}, "input": "x"}
    counted = http.post("/responses/input_tokens", json=body).json()["input_tokens"]
    assert counted == create_response(http, **body)["usage"]["input_tokens"] > 20


def test_a_template_works_in_streams_conversations_and_scripts(
    http: httpx.Client, script: Any, frames: Any
) -> None:
    conversation = http.post("/conversations", json={}).json()["id"]
    body = {
        "model": "scripted-chat",
        "prompt": {"id": "script", "variables": {"task": script({"say": "played"})}},
        "conversation": conversation,
        "stream": True,
    }
    events = frames(http.post("/responses", json=body).text)
    assert events[0]["response"]["prompt"] == {**body["prompt"], "version": "1"}
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "played"
    items = http.get(f"/conversations/{conversation}/items").json()["data"]
    assert [item["role"] for item in items] == ["assistant", "user"]


def test_a_response_without_a_template_has_no_prompt(http: httpx.Client) -> None:
    assert "prompt" not in create_response(http, model="scripted-chat", input="hi")


@pytest.mark.parametrize(
    ("prompt", "param", "code", "status"),
    [
        ({"id": "none"}, "prompt.id", None, 404),
        ({"id": "plain", "version": "2"}, "prompt.id", None, 404),
        ({"id": "../outside"}, "prompt.id", None, 404),
        ({"id": "..", "version": "outside/1"}, "prompt.id", None, 404),
        ({"id": "plain", "version": "../../outside/1"}, "prompt.id", None, 404),
        ({"id": "", "version": ""}, "prompt.id", None, 404),
        ({"id": "plain\x00"}, "prompt.id", None, 404),
        ({}, "prompt.id", "missing_required_parameter", 400),
        ({"id": 5}, "prompt.id", "invalid_type", 400),
        ({"id": "plain", "version": 10}, "prompt.version", "invalid_type", 400),
        ({"id": "plain", "variables": []}, "prompt.variables", "invalid_type", 400),
        (
            {"id": "plain", "variables": {"x": "y"}},
            "prompt.variables.x",
            "unknown_parameter",
            400,
        ),
        ({"id": "text"}, "prompt.variables.word", "missing_required_parameter", 400),
        (
            {"id": "text", "variables": {"word": 5}},
            "prompt.variables.word",
            "invalid_type",
            400,
        ),
        (
            {"id": "text", "variables": {"word": {"type": "output_text", "text": "x"}}},
            "prompt.variables.word.type",
            "invalid_value",
            400,
        ),
        (
            {"id": "text", "variables": {"word": {"type": "input_text"}}},
            "prompt.variables.word.text",
            "missing_required_parameter",
            400,
        ),
        (
            {"id": "assistant", "variables": {"word": IMAGE}},
            "prompt.variables.word",
            "invalid_type",
            400,
        ),
        (
            {"id": "said", "variables": {"name": IMAGE, "fact": "f", "thing": "t"}},
            "prompt.variables.name",
            "invalid_type",
            400,
        ),
    ],
)
@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens"])
def test_what_is_wrong_is_named(
    http: httpx.Client,
    path: str,
    prompt: dict[str, Any],
    param: str,
    code: str | None,
    status: int,
) -> None:
    body = {"model": "scripted-chat", "input": "x", "prompt": prompt}
    error = refused(http.post(path, json=body), status)
    assert (error["param"], error["code"]) == (param, code)
    assert "secret" not in error["message"]


def test_a_model_must_come_from_one_of_the_two(http: httpx.Client) -> None:
    error = refused(ask(http, {"id": "text", "variables": {"word": "x"}}))
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


def test_a_server_without_templates_says_which_setting_it_needs(server: Any) -> None:
    body = {"model": "scripted-chat", "input": "x", "prompt": {"id": "plain"}}
    error = refused(httpx.post(f"{server.api}/responses", json=body))
    assert (error["param"], error["code"]) == ("prompt", "unsupported_parameter")
    assert "--prompts-dir" in error["message"]


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("this is no TOML", "1.toml' cannot be used"),
        ("temperature = 7", "temperature: "),
        ('stream = "true"', "stream: A template cannot set"),
        ("made_up = 1", "made_up: "),
        ('[[input]]\nrole = "judge"\ncontent = "x"', r"input\[0\].role: "),
        ('[[input]]\ntype = "compaction"\nencrypted_content = "x"', r"input\[0\]: .* messages"),
        ('[[tools]]\ntype = "function"\nname = 5', r"tools\[0\].name: "),
        ('[prompt]\nid = "other"', "prompt: "),
        ("seed = 2026-01-01", "seed: "),
    ],
)
def test_a_template_that_cannot_be_used_keeps_the_server_from_starting(
    serve: Callable[..., Any], tmp_path: Path, text: str, because: str
) -> None:
    folder = write(tmp_path / "prompts", {"broken/1.toml": text})
    with pytest.raises(SettingsError, match=because), serve(prompts_dir=folder):
        pass


def test_a_folder_that_is_not_there_keeps_the_server_from_starting(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    with (
        pytest.raises(SettingsError, match="does not exist"),
        serve(prompts_dir=tmp_path / "none"),
    ):
        pass
