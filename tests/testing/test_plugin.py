"""The plugin serves the scripted models, and costs nothing where nobody uses it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent

import httpx
import pytest
from tests.testing.runs import run_pytest, write

from antiphon.domain.errors import SettingsError
from antiphon.testing.scripts import script
from antiphon.testing.server import ScriptedServer, scripted_app

pytestmark = pytest.mark.slow

PLUGIN = "antiphon.testing.plugin"

Serve = Callable[..., AbstractContextManager[ScriptedServer]]


def ask(server: ScriptedServer, text: str, *, model: str = "scripted") -> httpx.Response:
    return httpx.post(
        f"{server.base_url}/responses",
        json={"model": model, "input": text},
        headers={"authorization": f"Bearer {server.api_key}"},
        timeout=30,
    )


def text_of(answer: httpx.Response) -> str:
    text: str = answer.json()["output"][0]["content"][0]["text"]
    return text


@pytest.mark.parametrize("model", ["scripted-chat", "scripted-harmony"])
def test_the_server_plays_scripts_for_its_models(
    antiphon_server: ScriptedServer, model: str
) -> None:
    assert model in antiphon_server.models
    assert text_of(ask(antiphon_server, script({"say": "Hello."}), model=model)) == "Hello."


def test_a_stream_arrives_while_it_is_written(antiphon_server: ScriptedServer) -> None:
    text = script([{"say": "Wait."}, {"hang": 60}])
    body = {"model": "scripted", "input": text, "stream": True}
    with httpx.stream("POST", f"{antiphon_server.base_url}/responses", json=body) as answer:
        assert any('"delta":"Wait' in line for line in answer.iter_lines())


def test_a_server_of_a_tests_own_takes_settings(serve_antiphon: Serve) -> None:
    with serve_antiphon(quota_responses=1) as server:
        assert [ask(server, "hi").status_code for _ in range(2)] == [200, 429]


def test_settings_of_a_section_are_named_with_two_underscores(serve_antiphon: Serve) -> None:
    with serve_antiphon(scripted__context_length=50) as server:
        answer = ask(server, "word " * 50)
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_settings_may_come_from_a_file(serve_antiphon: Serve, tmp_path: Path) -> None:
    config = tmp_path / "antiphon.toml"
    config.write_text('model = "scripted-chat"\nserved_model_name = ["ours"]\n')
    with serve_antiphon(config=config) as server:
        assert server.models == ("ours",)


def test_a_server_that_asks_for_keys_has_one(serve_antiphon: Serve) -> None:
    with serve_antiphon(auth="on") as server:
        assert ask(server, "hi").status_code == 200
        assert httpx.get(f"{server.base_url}/models").status_code == 401


def test_a_setting_that_does_not_exist_is_named(serve_antiphon: Serve) -> None:
    with (
        pytest.raises(SettingsError, match="'quota.response' is not a setting"),
        serve_antiphon(quota__response=1),
    ):
        pass


def test_the_interpreter_stays_as_the_tests_have_it(serve_antiphon: Serve) -> None:
    collector, usual_interval = (gc.get_threshold(), gc.get_freeze_count()), sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    try:
        with serve_antiphon():
            assert (gc.get_threshold(), gc.get_freeze_count()) == collector
            assert sys.getswitchinterval() == pytest.approx(0.004)
    finally:
        sys.setswitchinterval(usual_interval)


async def test_an_app_can_be_served_without_a_port() -> None:
    async with (
        scripted_app(quota_responses=1) as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://antiphon/v1"
        ) as http,
    ):
        body = {"model": "scripted", "input": script({"say": "Hello."})}
        assert text_of(await http.post("/responses", json=body)) == "Hello."
        assert (await http.post("/responses", json=body)).status_code == 429


async def test_an_app_without_a_port_ends_what_still_runs() -> None:
    async with (
        scripted_app() as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://antiphon/v1"
        ) as http,
    ):
        body = {"model": "scripted", "input": script({"hang": 600}), "background": True}
        answer = await http.post("/responses", json=body)
        assert answer.json()["status"] in ("queued", "in_progress")


def test_the_plugin_imports_no_server_before_a_test_uses_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "test_plain.py": dedent("""
                import sys

                def test_nothing_heavy_is_here():
                    loaded = {name.partition(".")[0] for name in sys.modules}
                    assert not loaded & {"litestar", "uvicorn", "msgspec", "httpx", "uvloop"}
                    assert not [name for name in sys.modules if name.startswith("antiphon.domain")]
            """)
        },
    )
    assert run_pytest(tmp_path, "--strict-config", plugins=(PLUGIN,)).passed == 1


def test_pytest_finds_the_plugin_by_itself() -> None:
    found = {point.name: point.value for point in entry_points(group="pytest11")}
    assert found["antiphon"] == PLUGIN
