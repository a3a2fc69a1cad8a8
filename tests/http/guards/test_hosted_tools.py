"""Each kind of tool that the server runs: a call that is refused, and a result that is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script, text_of
from tests.http.guards.conftest import ServeGuarded
from tests.http.guards.odd_guards import MESSAGE, WORD

Json = dict[str, Any]

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bwrap here: apt-get install bubblewrap"
)

INCLUDE = ["code_interpreter_call.outputs", "web_search_call.results", "metrics"]
CONTAINER = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
CASES: dict[str, tuple[Json, Json]] = {
    "code_interpreter": (CONTAINER, {"python": f"print('{WORD}')"}),
    "shell": (SHELL, {"call": "shell", "args": {"commands": [f"echo {WORD}"]}}),
    "image_generation": (
        {"type": "image_generation"},
        {"call": "image_generation", "args": {"prompt": f"A {WORD}."}},
    ),
    "web_search": ({"type": "web_search"}, {"call": "web_search", "args": {"query": WORD}}),
}
OWN_ITEMS = ("mcp_list_tools", "message")


@pytest.fixture(
    scope="module", params=["tool_call refuse", "tool_result refuse", "tool_result mask"]
)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    place, does = request.param.split()
    return place, does


@pytest.fixture(scope="module")
def guarded(
    serve_guarded: ServeGuarded, case: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    pages: Path = tmp_path_factory.mktemp("pages")
    (pages / "page.md").write_text(f"# A page\n\nIt says {WORD} and more.")
    settings = {
        "code_interpreter": True,
        "shell": True,
        "code.cgroup": "off",
        "image_generator": "scripted",
        "web_search": "corpus",
        "web.folder": pages,
    }
    place, does = case
    with (
        serve_guarded(does, place, **settings) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


@pytest.mark.parametrize("kind", CASES)
def test_a_hosted_tool(guarded: httpx.Client, model: str, kind: str, case: tuple[str, str]) -> None:
    place, does = case
    tool, call = CASES[kind]
    body = {"model": model, "input": script(call, {"say": "Well."}), "tools": [tool]}
    response = create(guarded, **body, include=INCLUDE)
    assert response["status"] == "completed"
    assert text_of(response) == "Well.", "the model goes on"
    called, *results = [item for item in response["output"] if item["type"] not in OWN_ITEMS]
    [turn, *_] = [turn for turn in response["metrics"]["turns"] if turn.get("tool_calls")]
    [recorded] = turn["tool_calls"]
    if place == "tool_call":
        assert WORD not in json.dumps(response["output"])
        assert recorded["result"] == "refused"
    if does == "refuse":
        assert MESSAGE in json.dumps([called, *results])
        assert called.get("result") is None, "there is no image"
        return
    shown = json.dumps(results or [{**called, "code": "", "action": {}, "result": ""}])
    assert WORD not in shown
    assert "*****" in shown
    if kind == "image_generation":
        assert called["result"].startswith("iVBOR"), "the image is no text"
