"""What a model on another server knows once it has started, and what it says if it cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.chat_completions.turns import join, read, turn_of
from tests.upstreams.chat_server import MODEL, ScriptedChatServer, scripted_chat_server

from antiphon.adapters.models.chat_completions import ChatCompletionsModel, ChatOptions
from antiphon.application.ports import Sampling
from antiphon.domain.errors import EngineDead, EngineError, RequestError, SettingsError
from antiphon.entrypoints.settings import ModelTable, Settings
from antiphon.entrypoints.wiring.models import build_models

KEY = "sk-of-a-test"


@pytest.fixture
def upstream() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server(context_length=5000) as server:
        yield server


def model_on(upstream: ScriptedChatServer, style: str, **options: Any) -> ChatCompletionsModel:
    fields = {"url": upstream.url(style), "model": MODEL, **options}
    return ChatCompletionsModel(["mine"], ChatOptions(**fields))


@pytest.mark.parametrize(
    ("style", "length"),
    [
        ("vllm", 5000),
        ("llama_cpp", 5000),
        ("ollama", 5000),
        ("lm_studio", 5000),
        ("openrouter", 5000),
        ("mistral", 5000),
        ("openai", 131_072),
    ],
)
async def test_the_context_length_is_the_servers(
    upstream: ScriptedChatServer, style: str, length: int
) -> None:
    model = model_on(upstream, style)
    await model.start()
    assert model.context_length == length
    assert upstream.chats == []  # nothing was generated
    await model.aclose()


async def test_a_key_comes_from_a_file_and_is_sent(
    upstream: ScriptedChatServer, tmp_path: Path
) -> None:
    upstream.key = KEY
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    model = model_on(upstream, "openai", key_file=str(file))
    await model.start()
    assert join(await read(model, turn_of({"say": "Hi."})))[-1] == "stop"
    await model.aclose()


async def test_a_wrong_key_is_told_at_the_start(
    upstream: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.key = KEY
    monkeypatch.setenv("UPSTREAM_KEY", "sk-wrong")
    with pytest.raises(SettingsError, match="key_env"):
        await model_on(upstream, "openai", key_env="UPSTREAM_KEY").start()
    monkeypatch.delenv("UPSTREAM_KEY")
    with pytest.raises(SettingsError, match="UPSTREAM_KEY"):
        await model_on(upstream, "openai", key_env="UPSTREAM_KEY").start()


@pytest.mark.parametrize("style", ["vllm", "llama_cpp", "openai", "ollama"])
@pytest.mark.parametrize("end", ["", "/"])
async def test_a_url_without_its_version_is_told_at_the_start(
    upstream: ScriptedChatServer, style: str, end: str
) -> None:
    url = upstream.url(style)
    assert url.endswith("/v1")
    with pytest.raises(SettingsError, match=f'Did you mean `url = "{url}"`'):
        await model_on(upstream, style, url=url.removesuffix("/v1") + end).start()


async def test_a_key_is_in_no_log(
    upstream: ScriptedChatServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("UPSTREAM_KEY", "sk-upstream-3f1c")  # the scripted errors repeat it
    model = model_on(upstream, "openai", key_env="UPSTREAM_KEY")
    await model.start()
    upstream.faults += ["401", "500"]
    for _ in range(2):
        with pytest.raises(EngineError):
            await model.start_turn(turn_of({"say": "Hi."}), request_id="r")
    assert "its server answered with status 401" in caplog.text
    assert "sk-upstream" not in caplog.text
    await model.aclose()


async def test_a_server_that_is_not_there_is_dead_and_can_be_started_later(
    upstream: ScriptedChatServer,
) -> None:
    gone = ChatCompletionsModel(["mine"], ChatOptions(url="http://127.0.0.1:1/v1"))
    with pytest.raises(EngineDead):
        await gone.start()
    with pytest.raises(EngineDead):
        await gone.check()
    model = model_on(upstream, "openai")
    await model.start()
    await model.start()
    await model.check()
    await model.aclose()


async def test_a_refusal_is_remembered_only_if_the_server_takes_the_rest(
    upstream: ScriptedChatServer,
) -> None:
    model = model_on(upstream, "gateway")
    await model.start()
    turn = turn_of({"say": "Hi."}, sampling=Sampling(seed=1))
    upstream.refused_fields |= {"seed", "messages"}
    with pytest.raises(RequestError) as refused:
        await model.start_turn(turn, request_id="r")
    assert refused.value.param == "input"
    assert model.ignored_fields(turn) == ()
    upstream.refused_fields -= {"messages"}
    assert join(await read(model, turn)) == [("TextDelta", "Hi."), "stop"]
    assert model.ignored_fields(turn) == ["seed"]
    await model.aclose()


async def test_the_options_name_what_the_server_ignores(upstream: ScriptedChatServer) -> None:
    model = model_on(upstream, "gateway", ignores=("seed",), extra_body={"provider": "x"})
    await model.start()
    turn = turn_of({"say": "Hi."}, sampling=Sampling(seed=1))
    assert model.ignored_fields(turn) == ["seed"]
    await read(model, turn)
    assert "seed" not in upstream.chats[-1].body
    assert upstream.chats[-1].body["provider"] == "x"
    await model.aclose()


def test_the_settings_name_the_server() -> None:
    options = {"url": "http://127.0.0.1:11434/v1", "model": "qwen3:8b", "context_length": 8192}
    table = ModelTable(name=("big", "default"), engine="chat", options=options)
    [model] = build_models(Settings(models=[table]))
    assert list(model.names) == ["big", "default"]


def test_the_guide_has_every_option() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/upstreams.md").read_text(encoding="utf-8")
    assert [name for name in ChatOptions.__struct_fields__ if f"`{name}`" not in guide] == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "url"),
        ({"url": "localhost:1234"}, "url"),
        ({"url": "http://a/v1", "key_env": "A", "key_file": "b"}, "key_env"),
        ({"url": "http://a/v1", "tempperature": 1}, "tempperature"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    table = ModelTable(name=("big",), engine="chat", options=options)
    with pytest.raises(SettingsError, match=named):
        build_models(Settings(models=[table]))
