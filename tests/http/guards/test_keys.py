"""Which guards apply to a key, and what is recorded of their verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_limits import Keys, error_of
from tests.http.conftest import create, script, text_of, wait_until
from tests.http.guards.conftest import SAID
from tests.http.guards.odd_guards import MESSAGE, WORD

GUARDS = [
    "words=tests.http.guards.odd_guards:WordGuard",
    "more=tests.http.guards.odd_guards:WordGuard",
]
OPTIONS = """
[options.guard.words]
does = "mask"
places = ["output"]

[options.guard.more]
word = "all"
places = ["output"]
"""


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(scope="module")
def keys(serve_from: Any, tmp_path_factory: pytest.TempPathFactory, audit: Path) -> Iterator[Keys]:
    folder = tmp_path_factory.mktemp("guarded_keys")
    file, config = folder / "keys.toml", folder / "guards.toml"
    file.touch()
    config.write_text(OPTIONS)
    given = {"guard": GUARDS, "audit_log": audit, "guards.window": 10, "metrics": True}
    with serve_from(folder, auth="on", keys_file=file, config=config, **given) as server:
        yield Keys(file, server)


def say(client: httpx.Client, text: str, **body: Any) -> dict[str, Any]:
    return create(client, model="scripted-chat", input=script({"say": text}), **body)


def test_all_guards_apply_to_a_key_that_names_none(keys: Keys) -> None:
    with keys.client() as client:
        response = say(client, SAID)
        [message] = response["output"]
        assert message["content"][-1] == {"type": "refusal", "refusal": MESSAGE}


def test_a_key_may_have_some_of_the_guards_in_the_order_of_the_settings(keys: Keys) -> None:
    with keys.client(guards=("words",)) as client:
        assert text_of(say(client, SAID)) == SAID.replace(WORD, "*****")
    with keys.client(guards=("more", "words")) as client:
        response = say(client, f"It is {WORD}, all of it.", include=["metrics"])
        names = [(each["guard"], each["verdict"]) for each in response["metrics"]["guards"]]
        assert names[0] == ("words", "replace")
        assert ("more", "refuse") in names


def test_a_key_may_be_exempt_from_guards(keys: Keys) -> None:
    with keys.client(guards=("none",)) as client:
        response = say(client, SAID, include=["metrics"])
        assert text_of(response) == SAID
        assert "guards" not in response["metrics"]


def test_a_key_whose_guard_is_missing_starts_no_response(keys: Keys) -> None:
    with keys.client(guards=("wrods",)) as client:
        body = {"model": "scripted-chat", "input": "Hello."}
        error = error_of(client.post("/responses", json=body), 503)
        assert error["code"] == "guard_failed"
        assert error["message"] == (
            "The guard 'wrods' of this server failed: the key's policy names it, but there is none."
        )


def test_the_guards_of_a_key_are_those_of_its_background_responses(keys: Keys) -> None:
    with keys.client(guards=("words",)) as client:
        begun = say(client, SAID, background=True)
        path = f"/responses/{begun['id']}"
        wait_until(lambda: client.get(path).json()["status"] == "completed")
        assert text_of(client.get(path).json()) == SAID.replace(WORD, "*****")


def test_the_audit_log_has_each_verdict_but_pass_and_no_text(keys: Keys, audit: Path) -> None:
    with keys.client(guards=("words",)) as client:
        response = say(client, WORD)

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in audit.read_text().splitlines()]
        return [each for each in found if each["response_id"] == response["id"]]

    wait_until(lambda: bool(lines()))
    [line] = lines()
    assert line.pop("time")
    assert line.pop("key_id")
    assert line == {
        "tenant": "t",
        "response_id": response["id"],
        "guard": "words",
        "place": "output",
        "verdict": "replace",
        "tool": "",
        "text_sha256": sha256(WORD.encode()).hexdigest(),
    }
    assert WORD not in audit.read_text()


def test_verdicts_are_counted(keys: Keys) -> None:
    with keys.client(guards=("words",)) as client:
        say(client, SAID)
    with keys.client(scopes=("metrics",)) as client:
        url = keys.server.api.removesuffix("/v1") + "/metrics"
        text = client.get(url).text
    labels = 'guard="words",place="output",verdict="replace"'
    assert f"antiphon_guard_verdicts_total{{{labels}}}" in text
    assert 'antiphon_guard_seconds_total{guard="words",place="output"}' in text
