"""What the server says of its models: OpenAI's list, and the catalog that Codex asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

CHAT_NAMES = ["scripted-chat", "scripted", "gpt-4.1-scripted"]
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LENGTH = 131_072
MARKERS = "{{", "{%"
"""What Codex would replace in its instructions."""


@pytest.fixture
def client(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=20) as http:
        yield http


def by_name(client: httpx.Client) -> dict[str, dict[str, Any]]:
    answer = client.get("/models")
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "list"
    return {entry["id"]: entry for entry in answer.json()["data"]}


def catalog(client: httpx.Client) -> dict[str, dict[str, Any]]:
    answer = client.get("/models", params={"client_version": "0.169.0"})
    assert answer.status_code == 200, answer.text
    assert list(answer.json()) == ["models"]
    return {entry["slug"]: entry for entry in answer.json()["models"]}


def test_a_model_tells_what_clients_and_operators_need(client: httpx.Client) -> None:
    entry = by_name(client)["scripted-chat"]
    assert {**entry, "created": 0} == {
        "id": "scripted-chat",
        "object": "model",
        "created": 0,
        "owned_by": "antiphon",
        "root": "scripted-chat",
        "aliases": CHAT_NAMES[1:],
        "ready": True,
        "hosted_tools": ["file_search", "mcp"],
        "context_length": LENGTH,
        "max_model_len": LENGTH,
        "input_modalities": ["text", "image"],
        "reasoning_efforts": EFFORTS,
        "format": "chat:scripted",
    }


def test_each_name_has_an_entry_that_tells_the_others(client: httpx.Client) -> None:
    entries = by_name(client)
    assert list(entries)[:3] == CHAT_NAMES
    for name in CHAT_NAMES:
        assert entries[name]["root"] == CHAT_NAMES[0]
        assert sorted([*entries[name]["aliases"], name]) == sorted(CHAT_NAMES)


def test_one_model_is_described_as_in_the_list(client: httpx.Client) -> None:
    assert client.get("/models/scripted").json() == by_name(client)["scripted"]


def test_tools_that_are_switched_on_are_named(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("A page.")
    given = {"web_search": "corpus", "web.folder": tmp_path}
    with serve(**given) as server, httpx.Client(base_url=server.api) as client:
        tools = by_name(client)["scripted"]["hosted_tools"]
    assert tools == ["file_search", "mcp", "web_search"]


def test_tools_that_a_tool_server_replaces_are_named(serve_odd_tools: Any) -> None:
    with serve_odd_tools(stand_in=["image_generation=odd"]) as client:
        tools = by_name(client)["scripted"]["hosted_tools"]
    assert tools == ["file_search", "image_generation", "mcp"]


def test_a_dead_model_is_listed_as_not_ready(serve: Any) -> None:
    with serve() as server, httpx.Client(base_url=server.api, timeout=20) as client:
        server.engine("scripted-chat")._die("no GPU")
        entries = by_name(client)
    assert not entries["scripted-chat"]["ready"]
    assert entries["scripted-harmony"]["ready"]


def test_each_model_tells_what_it_can_do_itself(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(
        '[[models]]\nname = ["small", "s"]\nengine = "scripted"\ncontext_length = 4096\n'
        '[[models]]\nname = "big"\nengine = "scripted"\nformat = "harmony"\n'
    )
    with serve(config=file) as server, httpx.Client(base_url=server.api) as client:
        told = {
            name: (entry["context_length"], entry["format"], entry["aliases"])
            for name, entry in by_name(client).items()
        }
    assert told == {
        "small": (4096, "chat:scripted", ["s"]),
        "s": (4096, "chat:scripted", ["small"]),
        "big": (LENGTH, "harmony", []),
    }


def test_the_openai_sdk_reads_the_list(server: Any) -> None:
    with openai.OpenAI(base_url=server.api, api_key="none") as sdk:
        listed = {model.id: model for model in sdk.models.list()}
        retrieved = sdk.models.retrieve("scripted-harmony")
    assert retrieved == listed["scripted-harmony"]
    assert retrieved.to_dict()["context_length"] == LENGTH


# --- the catalog of Codex -------------------------------------------------------------------------


def test_the_catalog_tells_codex_what_the_model_can_do(serve: Any) -> None:
    with (
        serve(**{"scripted.context_length": 20_000}) as server,
        httpx.Client(base_url=server.api) as client,
    ):
        model = catalog(client)["scripted-chat"]
    assert model["context_window"] == 20_000
    assert model["input_modalities"] == ["text", "image"]
    levels = model["supported_reasoning_levels"]
    assert [level["effort"] for level in levels] == EFFORTS
    assert all(level["description"] != level["effort"] for level in levels)
    assert model["default_reasoning_level"] == "medium"
    assert model["supports_parallel_tool_calls"] is True


def test_the_menu_of_codex_has_each_model_once(client: httpx.Client) -> None:
    models = catalog(client)
    assert set(models) == set(by_name(client))
    listed = [name for name, model in models.items() if model["visibility"] == "list"]
    assert "scripted-chat" in listed
    assert not {"scripted", "gpt-4.1-scripted"} & set(listed)


def test_codex_gets_instructions_without_placeholders(client: httpx.Client) -> None:
    for model in catalog(client).values():
        instructions = model["base_instructions"]
        assert "apply_patch" in instructions
        assert not any(marker in instructions for marker in MARKERS)
