"""The recipe for a tool that the server runs, followed: a clock, in three files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..http.conftest import frames, script, text_of

pytestmark = pytest.mark.slow

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
CLOCK = Path(__file__).parent / "clock"
URL = re.compile(r"http://127\.0\.0\.1:\d+")
WIRING = "entrypoints/wiring/tools.py"
LINE = "    tool_providers: list[ToolProvider] = ["
TOOLS = [{"type": "clock"}]
ASKED = {"call": "clock", "args": {"place": "Oslo"}}
INCLUDE = ["clock_call.source"]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product with the three files of the recipe: two new, and a line in a third."""
    source = tmp_path_factory.mktemp("product")
    package = source / "antiphon"
    shutil.copytree(ROOT / "src/antiphon", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CLOCK / "kind.py", package / "domain/kinds/clock.py")
    shutil.copy(CLOCK / "caller.py", package / "application/tools/clock.py")
    wiring = package / WIRING
    before, line, after = wiring.read_text().partition(LINE)
    provider = "from antiphon.application.tools.clock import ClockProvider"
    before = before.replace("\nimport ", f"\n{provider}\nimport ", 1)
    wiring.write_text(f"{before}{line}ClockProvider(), {after}")
    return source


def environment(product: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(product)}


@contextmanager
def serving(product: Path, data: Path) -> Iterator[httpx.Client]:
    serve = ("-m", "antiphon.entrypoints.cli", "serve", "--port", "0", "--data-dir", str(data))
    with subprocess.Popen(
        [sys.executable, *serve],
        env=environment(product),
        cwd=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = next((found for line in server.stdout if (found := URL.search(line))), None)
            assert address, "the server did not start"
            with httpx.Client(base_url=f"{address[0]}/v1", timeout=30) as http:
                yield http
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def http(product: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(product, tmp_path_factory.mktemp("data")) as http:
        yield http


@pytest.fixture(params=["scripted-chat", "scripted-harmony"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def create(http: httpx.Client, model: str, **body: Any) -> Json:
    answer = http.post("/responses", json={"model": model, "tools": TOOLS, **body})
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    return response


def ask(http: httpx.Client, model: str, **body: Any) -> Json:
    turns = script(ASKED, {"say": "There you are."})
    return create(http, model, input=turns, include=INCLUDE, **body)


def without_ids(item: Json) -> Json:
    return {name: value for name, value in item.items() if name != "id"}


SHOWN = {
    "type": "clock_call",
    "status": "completed",
    "place": "Oslo",
    "time": "12:34",
    "source": "sundial",
}


def test_a_call_is_run_and_its_result_reaches_the_model(http: httpx.Client, model: str) -> None:
    response = ask(http, model, enable_response_messages=True)
    call, message = response["output"]
    assert call["id"].startswith("clk_")
    assert without_ids(call) == SHOWN
    assert message["content"][0]["text"] == "There you are."
    # The script goes on only after a result; these are the messages that the model was shown.
    assert "12:34" in json.dumps([response["input_messages"], response["output_messages"]])
    assert response["tools"] == [{"type": "clock", "source": "sundial"}]


def test_a_model_lists_the_clock_among_its_tools(http: httpx.Client, model: str) -> None:
    assert "clock" in http.get(f"/models/{model}").json()["hosted_tools"]


def test_a_stream_shows_the_steps_of_the_call(http: httpx.Client, model: str) -> None:
    body = {"model": model, "tools": TOOLS, "stream": True, "include": INCLUDE}
    turns = script(ASKED, {"say": "There you are."})
    events = frames(http.post("/responses", json={**body, "input": turns}).text)
    call_id = events[2]["item"]["id"]
    of_the_call = [
        event["type"]
        for event in events
        if event.get("item_id") == call_id or event.get("item", {}).get("id") == call_id
    ]
    assert of_the_call == [
        "response.output_item.added",
        "response.clock_call.in_progress",
        "response.clock_call.reading",
        "response.clock_call.completed",
        "response.output_item.done",
    ]
    assert text_of(events[-1]["response"]) == "There you are."


def test_a_replayed_call_reaches_the_model_again(http: httpx.Client, model: str) -> None:
    output = ask(http, model)["output"]
    question = {"role": "user", "content": script(ASKED, {"say": "1"}, {"say": "2"})}
    body = {"store": False, "enable_response_messages": True}
    response = create(http, model, input=[question, *output], **body)
    assert text_of(response) == "2"
    assert "12:34" in json.dumps(response["input_messages"])


def test_a_response_is_continued_and_its_call_is_listed(http: httpx.Client, model: str) -> None:
    first = ask(http, model)
    again = script({"say": "Still fine."})
    second = create(http, model, input=again, previous_response_id=first["id"])
    assert text_of(second) == "Still fine."
    path = f"/responses/{second['id']}/input_items"
    listed = http.get(path, params={"include": INCLUDE}).json()["data"]
    assert SHOWN in [without_ids(item) for item in listed]
    hidden = [item for item in http.get(path).json()["data"] if item["type"] == "clock_call"]
    assert [item["source"] for item in hidden] == [None]


def test_a_conversation_lists_the_call(http: httpx.Client, model: str) -> None:
    conversation = http.post("/conversations", json={}).json()["id"]
    ask(http, model, conversation=conversation)
    path = f"/conversations/{conversation}/items"
    listed = http.get(path, params={"include": INCLUDE}).json()["data"]
    assert SHOWN in [without_ids(item) for item in listed]


def test_a_client_can_choose_the_clock_and_only_it(http: httpx.Client, model: str) -> None:
    turns = script(ASKED, {"say": "There you are."})
    response = create(http, model, input=turns, tool_choice={"type": "clock"})
    assert [item["type"] for item in response["output"]] == ["clock_call", "message"]


def test_a_call_outlives_a_restart(product: Path, model: str, tmp_path: Path) -> None:
    with serving(product, tmp_path) as http:
        first = ask(http, model)
    with serving(product, tmp_path) as http:
        shown = http.get(f"/responses/{first['id']}", params={"include": INCLUDE}).json()
        assert shown["output"] == first["output"]
        again = script({"say": "Still fine."})
        second = create(http, model, input=again, previous_response_id=first["id"])
        assert text_of(second) == "Still fine."


def test_a_server_does_not_start_without_a_part_and_says_which(
    product: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "product"
    shutil.copytree(product, copy, ignore=shutil.ignore_patterns("__pycache__"))
    kind = copy / "antiphon/domain/kinds/clock.py"
    kind.write_text(kind.read_text().replace('    prefix="clk",\n', ""))
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--port", "0"],
        env=environment(copy),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert "The item 'clock_call' has no prefix (ItemKind.prefix)." in done.stderr
