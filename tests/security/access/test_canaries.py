"""Canaries in all that is secret or private: no output holds one that is not for its reader."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import script, wait_until
from tests.http.operation.test_request_log import Lines
from tests.http.resources.test_webhooks import listening
from tests.support import fake_mcp_server, otlp_collector
from websockets.sync.client import connect

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy

SECRETS = ("mcp-token", "mcp-header", "webhook-secret", "client-query")
"""What nobody may read, its owner neither: kept sealed, or not at all."""

WORDS = (
    *("prompt", "instructions", "said", "thought", "metadata", "tool-result", "tool-argument"),
    *("file-content", "file-name", "conversation", "function-output", "function-name", "schema"),
)
"""What only its tenant may read."""

CANARIES = {name: f"canary-{name}-7f3a" for name in (*SECRETS, *WORDS)}
WEBHOOK_SECRET = "whsec_" + base64.b64encode(CANARIES["webhook-secret"].encode() * 2).decode()[:64]
MODELS = ("scripted-chat", "scripted-harmony")


class House:
    """A server with everything on, after a tenant has used all of it: each output as text."""

    def __init__(self) -> None:
        self.outputs: dict[str, str] = {}
        self.key = ""
        self.sent_to_tools = ""

    def holds(self, name: str, canary: str) -> bool:
        text = self.outputs[name]
        plain = CANARIES[canary]
        encoded = base64.b64encode(plain.encode()).decode().rstrip("=")[:-2]
        return plain in text or encoded in text or plain.encode().hex() in text


@pytest.fixture(scope="module")
def house(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("canaries")
    lines, root = Lines(), logging.getLogger("antiphon")
    level = root.level
    root.addHandler(lines)
    root.setLevel(logging.DEBUG)
    made = House()
    try:
        with (
            otlp_collector.collecting() as collector,
            fake_mcp_server.site() as site,
            listening() as receiver,
        ):
            given = {
                "auth": "on",
                "keys_file": folder / "keys.toml",
                "store": "sqlite",
                "keep_traces": "all",
                "metrics": True,
                "metrics_tenants": True,
                "otlp_endpoint": collector.url,
                "audit_log": folder / "audit.jsonl",
                "webhook_url": receiver.url,
                "webhook_secret": WEBHOOK_SECRET,
                "fetch.urls": True,
                "fetch.hosts": ["127.0.0.1:*"],
                "fetch.private": ["127.0.0.1"],
            }
            keys = {name: new_key(folder / "keys.toml", name) for name in ("blue", "red")}
            made.key = keys["blue"]
            _add_metrics_key(folder / "keys.toml", keys)
            with serve_from(folder, **given) as server:
                use(server, keys["blue"], site)
                wait_until(lambda: bool(receiver.received))
                made.outputs |= others_see(server, keys)
                made.outputs |= own_views(server, keys["blue"])
            made.sent_to_tools = str(site.asked)
            made.outputs["traces"] = "".join(map(str, collector.spans))
            made.outputs["webhooks"] = str(receiver.received)
        made.outputs["log"] = "\n".join(lines.texts)
        made.outputs["audit log"] = (folder / "audit.jsonl").read_text()
        made.outputs["files on disk"] = "".join(
            file.read_bytes().decode("latin-1")
            for file in folder.rglob("*")
            if file.is_file() and file.name != "keys.toml"
        )
        yield made
    finally:
        root.removeHandler(lines)
        root.setLevel(level)


def _add_metrics_key(file: Path, keys: dict[str, str]) -> None:
    keys["metrics"], kept = create_key("m", "ops", new_id=lambda p: f"{p}_m", now=lambda: 0)
    append(file, replace(kept, policy=KeyPolicy(scopes=("metrics",))))


def use(server: Any, key: str, site: Any) -> None:
    """Do everything that a tenant can do with canaries."""
    say, query = CANARIES, {"note": CANARIES["client-query"]}
    site.says["look"] = say["tool-result"]
    with httpx.Client(base_url=server.api, headers=bearer(key), timeout=30) as client:
        file = client.post(
            "/files",
            data={"purpose": "user_data"},
            files={"file": (f"{say['file-name']}.txt", say["file-content"].encode())},
        ).json()
        conversation = client.post(
            "/conversations", json={"metadata": {"a": say["conversation"]}}
        ).json()
        for model in MODELS:
            for body in bodies(model, site, file["id"], conversation["id"]):
                client.post("/responses", json=body, params=query)
                client.post("/responses", json={**body, "stream": True})
                if "conversation" not in body:
                    made = client.post("/responses", json={**body, "background": True}).json()
                    read = f"/responses/{made['id']}"
                    wait_until(
                        lambda read=read: (  # type: ignore[misc]
                            client.get(read).json()["status"] not in ("queued", "in_progress")
                        )
                    )
        url = server.api.replace("http", "ws", 1) + "/responses"
        with connect(url, additional_headers=bearer(key), proxy=None) as socket:
            socket.send(
                json.dumps({"type": "response.create", **bodies(MODELS[0], site, "", "")[0]})
            )
            with suppress(TimeoutError):
                while "response.completed" not in str(socket.recv(timeout=10)):
                    pass
        for broken in ({"input": 5}, {"tools": [{"type": "function", "name": say["prompt"] * 9}]}):
            client.post("/responses", json={"model": MODELS[0], "input": say["prompt"], **broken})
        torn = b'{"input": "' + say["prompt"].encode()
        client.post("/responses", content=torn, headers={"content-type": "application/json"})


def bodies(model: str, site: Any, file: str, conversation: str) -> list[dict[str, Any]]:
    say = CANARIES
    turn = [{"think": say["thought"]}, {"say": say["said"]}]
    look = {"mcp": "look", "args": {"a": say["tool-argument"]}}
    mcp = {
        "type": "mcp",
        "server_label": "calc",
        "server_url": site.url,
        "authorization": say["mcp-token"],
        "headers": {"x-secret": say["mcp-header"]},
        "require_approval": "never",
    }
    function = {"type": "function", "name": say["function-name"], "parameters": {"type": "object"}}
    plain = {
        "model": model,
        "instructions": say["instructions"],
        "metadata": {"a": say["metadata"]},
        "input": f"{say['prompt']} {script(turn)}",
    }
    answered = [
        {"role": "user", "content": say["prompt"]},
        {"type": "function_call", "call_id": "c", "name": say["function-name"], "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": say["function-output"]},
    ]
    schema = {"type": "object", "properties": {say["schema"]: {"type": "string"}}}
    parts = [{"type": "input_text", "text": say["prompt"]}]
    if file:
        parts.append({"type": "input_file", "file_id": file})
    return [
        plain,
        {**plain, "tools": [mcp], "input": f"{say['prompt']} {script(look, turn)}"},
        {**plain, "tools": [function], "input": answered},
        {**plain, "input": [{"role": "user", "content": parts}]},
        {**plain, "input": f"{say['prompt']} {script([{'say': say['said']}, {'fail': 'gone'}])}"},
        {**plain, "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}},
        *([{**plain, "conversation": conversation}] if conversation else []),
    ]


def others_see(server: Any, keys: Mapping[str, str]) -> dict[str, str]:
    """Return what another tenant, and somebody without a key, can read."""
    mine = httpx.get(f"{server.api}/responses?limit=100", headers=bearer(keys["blue"])).json()
    paths = ["/v1/responses?limit=100&include[]=metrics", "/v1/conversations", "/v1/files"]
    paths += [
        "/v1/models",
        "/console/state",
        "/console/activity?by=key",
        "/readyz",
        "/console",
        "/v1/containers",
    ]
    for each in mine["data"]:
        read = f"/v1/responses/{each['id']}"
        paths += [read, f"{read}/explain", f"{read}/input_items", f"{read}?stream=true"]
    reds, nobodys = "", ""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for path in paths:
            reds += client.get(path, headers=bearer(keys["red"])).text
            nobodys += client.get(path).text
        metrics = client.get("/metrics", headers=bearer(keys["metrics"])).text
    return {"another tenant": reds, "nobody": nobodys, "metrics": metrics}


def own_views(server: Any, key: str) -> dict[str, str]:
    """Return what the tenant reads of its own: secrets are in none of it."""
    text = ""
    with httpx.Client(base_url=server.url, headers=bearer(key), timeout=30) as client:
        listed = client.get("/v1/responses?limit=100").json()["data"]
        text += json.dumps(listed)
        for each in listed:
            for path in ("", "/explain", "/input_items"):
                text += client.get(f"/v1/responses/{each['id']}{path}").text
        text += client.get("/console/state").text + client.get("/console/session").text
    return {"its own tenant": text}


OUTPUTS_FOR_OPERATORS = ("log", "traces", "metrics", "audit log", "webhooks")
OUTPUTS_FOR_OTHERS = ("another tenant", "nobody")


@pytest.mark.parametrize("canary", SECRETS)
@pytest.mark.parametrize(
    "output", [*OUTPUTS_FOR_OPERATORS, *OUTPUTS_FOR_OTHERS, "its own tenant", "files on disk"]
)
def test_no_output_holds_a_secret(house: House, output: str, canary: str) -> None:
    assert house.outputs[output]
    assert not house.holds(output, canary)


@pytest.mark.parametrize("canary", WORDS)
@pytest.mark.parametrize("output", [*OUTPUTS_FOR_OPERATORS, *OUTPUTS_FOR_OTHERS])
def test_only_its_tenant_reads_what_it_said(house: House, output: str, canary: str) -> None:
    assert not house.holds(output, canary)


@pytest.mark.parametrize("canary", sorted({*WORDS} - {"file-content", "conversation"}))
def test_its_tenant_does_read_it(house: House, canary: str) -> None:
    assert house.holds("its own tenant", canary), "or the other tests would prove nothing"


def test_no_output_holds_the_key(house: House) -> None:
    assert [name for name, text in house.outputs.items() if house.key in text] == []


def test_every_part_was_used(house: House) -> None:
    assert all(CANARIES[name] in house.sent_to_tools for name in ("mcp-token", "mcp-header"))
    assert "execute_tool look" in house.outputs["traces"]
    assert 'name="tools/list"' in house.outputs["metrics"]
    assert '"look"' in house.outputs["audit log"]
    assert "MESSAGE completed" in house.outputs["log"]
    assert "response.completed" in house.outputs["webhooks"]
