"""`--format chat:FAMILY` with the scripted engine: that family's markup, on a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import settings_for
from tests.http.conftest import create, frames, script, text_of

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.wiring.models import build_models

SOME = ("deepseek_v31", "hermes", "llama3_json", "mistral", "qwen3_coder")
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLS = [{"call": "get_weather", "args": {"city": city}} for city in ("Rome", "Oslo")]
TURNS = ([{"think": "Hm."}, {"say": "I look."}, *CALLS], {"say": "In Rome."})


@pytest.fixture(scope="module", params=SOME)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(
    serve_from: Any, tmp_path_factory: pytest.TempPathFactory, family: str
) -> Iterator[httpx.Client]:
    with (
        serve_from(tmp_path_factory.mktemp(family), format=f"chat:{family}") as server,
        httpx.Client(base_url=server.api, timeout=15) as client,
    ):
        yield client


def test_the_model_has_its_usual_names_and_one_of_its_family(
    client: httpx.Client, family: str
) -> None:
    names = [model["id"] for model in client.get("/models").json()["data"]]
    assert {"scripted-chat", "scripted", f"scripted-{family}", "scripted-harmony"} <= set(names)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_loops_over_tools(client: httpx.Client, family: str, streamed: bool) -> None:
    body: dict[str, Any] = {"model": f"scripted-{family}", "tools": [WEATHER], "stream": streamed}

    def ask(**fields: Any) -> dict[str, Any]:
        if not streamed:
            return create(client, **body, **fields)
        events = frames(client.post("/responses", json={**body, **fields}).text)
        return dict(events[-1]["response"])

    first = ask(input=script(*TURNS))
    thinks = FAMILIES[family].think is not None
    kinds = [*(["reasoning"] if thinks else []), "message", "function_call", "function_call"]
    assert [item["type"] for item in first["output"]] == kinds
    assert text_of(first) == "I look."
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    assert [json.loads(call["arguments"]) for call in calls] == [call["args"] for call in CALLS]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        for call in calls
    ]
    assert text_of(ask(input=outputs, previous_response_id=first["id"])) == "In Rome."


def test_a_message_is_streamed_piece_by_piece(client: httpx.Client) -> None:
    text = {"say": "One, two, three, four."}
    body = {"model": "scripted", "input": script(text), "stream": True}
    events = frames(client.post("/responses", json=body).text)
    deltas = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == text["say"]


def test_an_unknown_family_is_named_before_the_server_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no chat format 'gml'; choose one of: .*hermes"):
        build_models(settings_for(tmp_path, format="chat:gml"))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"model": "scripted-chat"}, ("scripted-chat", "scripted-hermes")),
        ({"model": "scripted-chat", "served_model_name": ["ours"]}, ("ours",)),
    ],
)
def test_a_model_that_is_named_alone_has_that_name(
    tmp_path: Path, given: dict[str, Any], names: tuple[str, ...]
) -> None:
    (model,) = build_models(settings_for(tmp_path, format="chat:hermes", **given))
    assert tuple(model.names) == names
