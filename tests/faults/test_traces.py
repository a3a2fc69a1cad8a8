"""What is not to be kept is nowhere: no file, row or log line has a byte of it."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import MODEL, Replica, replicas, wait_for
from websockets.sync.client import connect

pytestmark = pytest.mark.faults


def forms(secret: str) -> list[bytes]:
    """Return how a text might be written down; base64 is cut where its neighbours change it."""
    plain = secret.encode()
    shifted = (base64.b64encode(b"x" * shift + plain)[4:-4] for shift in range(3))
    return [plain, plain.hex().encode(), *shifted]


def files_with(folder: Path, secret: str) -> list[str]:
    return [
        str(file.relative_to(folder))
        for file in sorted(folder.rglob("*"))
        if file.is_file() and any(form in file.read_bytes() for form in forms(secret))
    ]


def nothing_else(_address: str, _secret: str) -> list[str]:
    return []


def rows_with(address: str, secret: str) -> list[str]:
    """Return the tables of a PostgreSQL database whose rows have the text in any column."""
    asyncpg = pytest.importorskip("asyncpg")

    async def search() -> list[str]:
        found = []
        connection = await asyncpg.connect(address)
        tables = await connection.fetch(
            "SELECT schemaname, tablename FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        assert tables, "there is something to search"
        for schema, table in tables:
            for row in await connection.fetch(f'SELECT * FROM "{schema}"."{table}"'):
                cells = [v if isinstance(v, bytes) else str(v).encode() for v in row.values()]
                if any(form in cell for cell in cells for form in forms(secret)):
                    found.append(f"{schema}.{table}")
        await connection.close()
        return found

    return asyncio.run(search())


def rewritten(address: str, _secret: str) -> list[str]:
    """Have Redis write its file anew: until then it has the history of all keys."""
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(address) as client:
        client.bgrewriteaof()
        wait_for(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0 or None)
    return []


OTHER_PLACES: Mapping[str, Callable[[str, str], list[str]]] = {
    "sqlite": nothing_else,
    "postgresql": rows_with,
    "redis": nothing_else,
}
AFTER_DELETING: Mapping[str, Callable[[str, str], list[str]]] = {**OTHER_PLACES, "redis": rewritten}


@pytest.fixture
def server(tmp_path: Path, shared_store: list[str]) -> Iterator[Replica]:
    swept = ("--sweep-s", "0.2", "--keep-events-s", "0.2")
    with replicas(tmp_path, *shared_store, *swept, count=1) as (started,):
        yield started


@pytest.fixture
def secret() -> str:
    return f"canary{secrets.token_hex(12)}"


def asked(secret: str, **fields: Any) -> dict[str, Any]:
    """A request that says the secret wherever a client can say something."""
    script = json.dumps([[{"think": f"{secret} r"}, {"say": f"{secret} t"}]])
    return {
        "model": MODEL,
        "instructions": f"{secret} i",
        "input": f"@@script {script}",
        "metadata": {"who": secret},
        "user": secret,
        "safety_identifier": secret,
        "prompt_cache_key": secret,
        "include": ["reasoning.encrypted_content"],
        **fields,
    }


@pytest.mark.timeout(60)
def test_a_response_that_is_not_stored_leaves_no_byte(
    server: Replica, shared_store: list[str], tmp_path: Path, secret: str
) -> None:
    kept_secret = f"kept{secrets.token_hex(12)}"
    kept = httpx.post(f"{server.api}/responses", json=asked(kept_secret)).json()
    assert kept["status"] == "completed"
    for stream in (False, True):
        body = asked(secret, store=False, stream=stream)
        headers = {"Idempotency-Key": f"key-{stream}"}
        answer = httpx.post(f"{server.api}/responses", json=body, headers=headers)
        assert (answer.status_code, secret in answer.text) == (200, True)
    refused = asked(secret, store=False, temperature=9)
    assert httpx.post(f"{server.api}/responses", json=refused).status_code == 400
    with connect(f"ws{server.api.removeprefix('http')}/responses") as socket:
        socket.send(json.dumps({"type": "response.create", **asked(secret, store=False)}))
        while json.loads(socket.recv(timeout=30))["type"] != "response.completed":
            pass
    places = OTHER_PLACES[shared_store[1].partition(":")[0]]
    assert places(shared_store[1], secret) == []
    assert files_with(tmp_path, secret) == []
    # The search finds what is there.
    assert files_with(tmp_path, kept_secret) or places(shared_store[1], kept_secret)
    server.stop()
    assert files_with(tmp_path, secret) == []


@pytest.mark.timeout(60)
def test_a_response_that_was_deleted_leaves_no_byte_after_the_sweep(
    server: Replica, shared_store: list[str], tmp_path: Path, secret: str
) -> None:
    ids = []
    for fields in (
        {},
        {"stream": True},
        {"background": True},
        {"background": True, "stream": True},
    ):
        headers = {"Idempotency-Key": f"key-{len(ids)}"}
        body = asked(secret, **fields)
        text = httpx.post(f"{server.api}/responses", json=body, headers=headers).text
        ids.append(text[(at := text.index("resp_")) : text.index('"', at)])
    for response_id in ids:
        url = f"{server.api}/responses/{response_id}"
        wait_for(lambda u=url: httpx.get(u).json()["status"] == "completed" or None)
        assert httpx.delete(url).json()["deleted"] is True
    places = AFTER_DELETING[shared_store[1].partition(":")[0]]
    wait_for(lambda: (places(shared_store[1], secret) == []) or None)
    wait_for(lambda: (files_with(tmp_path, secret) == []) or None)
    server.stop()
    assert files_with(tmp_path, secret) == []
