"""One server with several models: each is asked by its names, and fails by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import script

pytestmark = pytest.mark.slow

MODELS = """\
[[models]]
name = ["quick", "default"]
engine = "scripted"

[[models]]
name = "deep"
engine = "scripted"
format = "harmony"
fallback = ["quick"]

[[models]]
name = "lonely"
engine = "scripted"
format = "chat:hermes"
context_length = 4096
"""


@pytest.fixture
def server(serve: Any, tmp_path: Path) -> Iterator[Any]:
    file = tmp_path / "several.toml"
    file.write_text(MODELS, encoding="utf-8")
    with serve(config=file) as running:
        yield running


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"] for item in response["output"] for part in item.get("content") or ()
    )


def answer(server: Any, model: str, *turn: Any) -> httpx.Response:
    body = {"model": model, "input": script(*(turn or ({"say": "hello"},)))}
    return httpx.post(f"{server.api}/responses", json=body, timeout=20)


def kill(server: Any, *models: str) -> None:
    for model in server.container.supervised_models():
        if model.names[0] in models:
            model._model._engine._die("no GPU")


@pytest.mark.parametrize("name", ["quick", "default", "deep", "lonely"])
def test_each_model_answers_under_each_of_its_names(server: Any, name: str) -> None:
    response = answer(server, name).json()
    assert (response["model"], text_of(response)) == (name, "hello")


def test_the_models_are_listed_in_the_order_of_the_file(server: Any) -> None:
    names = [each["id"] for each in httpx.get(f"{server.api}/models").json()["data"]]
    assert names == ["quick", "default", "deep", "lonely"]


def test_a_model_that_is_not_there_is_a_503_for_its_own_requests_only(server: Any) -> None:
    kill(server, "lonely")
    refused = answer(server, "lonely")
    assert refused.status_code == 503
    assert answer(server, "quick").status_code == 200
    ready = httpx.get(f"{server.url}/readyz")
    assert ready.status_code == 200
    assert ready.json()["models"] == {"quick": "ok", "deep": "ok", "lonely": "unavailable"}


def test_a_model_that_has_died_is_there_again_after_a_while(server: Any) -> None:
    kill(server, "lonely")
    statuses = set()
    while (status := answer(server, "lonely").status_code) != 200:
        statuses.add(status)
    assert statuses <= {503}


def test_a_model_with_a_fallback_answers_although_it_has_died(server: Any) -> None:
    kill(server, "deep")
    response = answer(server, "deep").json()
    assert (response["model"], text_of(response)) == ("deep", "hello")


def test_a_fallback_ends_the_stream_as_if_nothing_had_failed(server: Any) -> None:
    kill(server, "deep")
    body = {"model": "deep", "input": script({"say": "hello"}), "stream": True}
    text = httpx.post(f"{server.api}/responses", json=body, timeout=20).text
    types = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
    assert types[0] == "response.created"
    assert types[-1] == "response.completed"
    assert "response.failed" not in types


ABSENT = """\
from antiphon.application.ports import Model
from antiphon.domain.errors import EngineDead


class Absent(Model):
    # Its server is never there.
    format_name = "absent"
    context_length = 1000
    reads_images = False
    efforts = ()
    sampling_defaults = {}

    def __init__(self, names):
        self._names = names

    @property
    def names(self):
        return self._names

    async def start(self):
        raise EngineDead("its server cannot be reached")

    async def count(self, turn):
        raise EngineDead("its server cannot be reached")

    async def start_turn(self, turn, *, request_id, admit=None):
        raise EngineDead("its server cannot be reached")

    async def aclose(self):
        pass
"""


def test_a_model_that_has_never_started_keeps_no_other_from_serving(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "absent_model.py").write_text(ABSENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "several.toml"
    table = '[[models]]\nname = "absent"\nengine = "absent_model:Absent"\n'
    file.write_text(table + MODELS, encoding="utf-8")
    with serve(config=file) as running:
        assert answer(running, "quick").status_code == 200
        refused = answer(running, "absent")
        ready = httpx.get(f"{running.url}/readyz")
        listed = httpx.get(f"{running.api}/models").json()["data"]
    assert refused.status_code == 503
    assert "'absent' is not available now" in refused.json()["error"]["message"]
    assert (ready.status_code, ready.json()["models"]["absent"]) == (200, "unavailable")
    assert [each["ready"] for each in listed if each["id"] == "absent"] == [False]
