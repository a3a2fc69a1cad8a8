"""What guards do not let pass is nowhere: no reader finds it, at whatever time it reads."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import frames, script, wait_until
from tests.http.guards.conftest import TOOLS, ServeGuarded
from tests.http.guards.odd_guards import WORD
from tests.http.guards.test_doors import DOORS, plain
from tests.http.operation.test_request_log import Lines
from tests.http.resources.test_webhooks import Receiver, listening
from tests.http.resources.test_webhooks import settings as webhook_settings

pytestmark = [pytest.mark.slow, pytest.mark.one_process]  # whose log the tests see

Json = dict[str, Any]

BEGUN, ENDED = WORD[:2], WORD[2:]
BEFORE, AFTER = "There is a word that may be written here, ", " and much is written after it. "

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
MCP = {"type": "mcp", "server_label": "odd", "require_approval": "never"}


def say(text: str, **fields: Any) -> Json:
    return {"say": text, **fields}


SPLITS: Mapping[str, list[Any]] = {
    "in one text": [say(BEFORE + WORD + AFTER)],
    "over tokens": [say(BEFORE + WORD + AFTER, chunk=1)],
    "all at once": [say(BEFORE + WORD + AFTER, chunk="all")],
    "at the start": [say(WORD + AFTER, chunk=1)],
    "at the end": [say(BEFORE + WORD, chunk=1)],
    "in capitals": [say(BEFORE + WORD.title() + AFTER, chunk=1)],
    "over parts": [[say(BEFORE + BEGUN, chunk=1), say(ENDED + AFTER, chunk=1)]],
    "in a thought": [[{"think": BEFORE + WORD + AFTER}, say("Well.")]],
    "from a thought to a text": [[{"think": BEFORE + BEGUN}, say(ENDED + AFTER)]],
    "in arguments": [[{"call": "f", "args": {"a": WORD}}]],
    "in a name in arguments": [[{"call": "f", "args": {WORD: 1}}]],
    "from a text to arguments": [[say(BEFORE + WORD), {"call": "f", "args": {"a": ENDED}}]],
    "in a call that the server runs": [[{"mcp": "echo", "args": {"echo": WORD}}], say("Well.")],
    "in a result": [[{"mcp": "say", "args": {}}], say("Well.")],
    "in a later turn": [[{"mcp": "echo", "args": {"echo": "a"}}], say(BEFORE + WORD + AFTER)],
    "over turns": [
        [say(BEFORE + BEGUN), {"mcp": "echo", "args": {"echo": "a"}}],
        say(ENDED + AFTER),
    ],
}


def hidden(text: str) -> str:
    """Return a script without the word itself: only what the model writes has it."""
    for word in (WORD, WORD.title()):
        text = text.replace(word, f"\\u{ord(word[0]):04x}{word[1:]}")
    assert WORD not in text.lower()
    return text


def found_in(text: str) -> bool:
    return WORD in text.lower() or WORD in plain(text).lower()


@pytest.fixture(scope="module", params=["refuse", "mask"])
def does(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with listening() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger("antiphon")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="module")
def server(
    serve_guarded: ServeGuarded, does: str, receiver: Receiver, lines: Lines
) -> Iterator[Any]:
    kept = {"keep_traces": "all", "metrics": True, **webhook_settings(receiver)}
    with serve_guarded(does, "output", "tool_call", "tool_result", tool=[TOOLS], **kept) as served:
        yield served


@pytest.fixture(scope="module")
def guarded(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=30) as client:
        yield client


def readers(guarded: httpx.Client, response_id: str, conversation_id: str) -> Iterator[str]:
    """Yield what each reader of an ended response gets."""
    path = f"/responses/{response_id}"
    stored = guarded.get(path, params={"include[]": "reasoning.encrypted_content"}).text
    yield stored
    for after in (-1, 0, 3, 10):
        yield guarded.get(path, params={"stream": True, "starting_after": after}).text
    for end in ("/explain", "/explain?format=text", "/input_items"):
        yield guarded.get(f"{path}{end}").text
    yield guarded.get(f"/conversations/{conversation_id}/items", params={"limit": 100}).text
    for item in json.loads(stored)["output"]:
        yield guarded.get(f"/conversations/{conversation_id}/items/{item['id']}").text
    yield guarded.get("/responses", params={"limit": 100}).text


@pytest.mark.parametrize("split", SPLITS)
def test_no_reader_finds_the_word(
    guarded: httpx.Client, model: str, split: str, receiver: Receiver
) -> None:
    conversation = guarded.post("/conversations", json={}).json()["id"]
    body = {
        "model": model,
        "input": hidden(script(*SPLITS[split])),
        "tools": [FUNCTION, MCP],
        "conversation": conversation,
        "background": True,
        "stream": True,
        "reasoning": {"summary": "auto"},
        "include": ["metrics", "reasoning.encrypted_content"],
        "top_logprobs": 2,
    }
    first = guarded.post("/responses", json=body)
    assert first.status_code == 200, first.text
    assert not found_in(first.text)
    response_id = frames(first.text)[0]["response"]["id"]
    for shown in readers(guarded, response_id, conversation):
        assert not found_in(shown)
    again = {"model": model, "input": "On.", "previous_response_id": response_id}
    following = guarded.post("/responses", json={**again, "enable_response_messages": True}).json()
    if "id" in following:  # a call that the client has not answered is a 400
        assert WORD not in json.dumps(following).lower()
        items = guarded.get(f"/responses/{following['id']}/input_items", params={"limit": 100})
        assert WORD not in items.text.lower()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("split", ["over tokens", "over parts", "from a thought to a text"])
def test_no_door_shows_it_however_it_is_split(
    guarded: httpx.Client, model: str, door: str, split: str
) -> None:
    path, body_of = DOORS[door]
    body = body_of(model, hidden(script(*SPLITS[split])))
    for streams in (False, True):
        answer = guarded.post(path, json={**body, "stream": streams, "store": True})
        assert answer.status_code == 200, answer.text
        assert not found_in(answer.text)


def rows_of(path: Path) -> Iterator[str]:
    """Yield all that a database holds for readers."""
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("select name from sqlite_master where type = 'table'").fetchall()
        # Events are read by their readers; the progress of a run, beside them, has no reader.
        for (table,) in set(tables) - {("events",)}:
            for row in database.execute(f'select * from "{table}"'):
                yield repr(row)


def test_nothing_that_is_kept_has_it(
    server: Any, guarded: httpx.Client, receiver: Receiver, lines: Lines, does: str
) -> None:
    """It comes last: all the responses of the tests above have been written by then."""
    wait_until(lambda: bool(receiver.received))
    folder = Path(server.container.settings().data_dir)
    assert any(folder.rglob("*.db"))
    told: Mapping[str, Callable[[], Iterator[str]]] = {
        "webhooks": lambda: (body.decode() for _, body in receiver.received),
        "logs": lambda: iter(lines.texts),
        "metrics": lambda: iter([httpx.get(f"{server.url}/metrics").text]),
        "files": lambda: (
            path.read_text("utf-8", "replace")
            for path in folder.rglob("*")
            if path.suffix in (".json", ".jsonl", ".log")
        ),
        "rows": lambda: (row for path in folder.rglob("*.db") for row in rows_of(path)),
    }
    for name, texts in told.items():
        # As the models wrote it: what is sealed is long, and may have its letters in another case.
        found = [text for text in texts() if WORD in text or WORD.title() in text]
        assert not found, name
    assert "antiphon_guard" in httpx.get(f"{server.url}/metrics").text
