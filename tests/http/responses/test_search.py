"""`GET /v1/responses?search=`: responses are found by what was said in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import create, script

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import ResponseStore
from antiphon.domain.responses.text_search import MAX_WORDS

pytestmark = pytest.mark.slow

Json = dict[str, Any]

HOSTILE = (
    *(
        '"',
        "*",
        "%",
        "_",
        "\\",
        "NEAR(",
        "a AND OR NOT",
        "\x00",
        "'; DROP TABLE items; --",
        "$1 ?1",
    ),
    *("[[:alpha:]]", "%s {} {0}", "‮ override", "a:b^2", "(" * 900, " a  b "),
)


@pytest.fixture(params=["memory", "sqlite"])
def own(request: pytest.FixtureRequest, serve_from: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a server that nobody else uses."""
    with (
        serve_from(tmp_path, store=request.param) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


def make(client: httpx.Client, text: str = "hi", **fields: Any) -> str:
    """Return the id of a response to a text."""
    made = create(client, **{"model": "scripted-chat", "input": text, **fields})
    return str(made["id"])


def search(client: httpx.Client, words: str, **query: Any) -> Json:
    answer = client.get("/responses", params={"search": words, **query})
    assert answer.status_code == 200, answer.text
    page: Json = answer.json()
    return page


def ids(page: Json) -> list[str]:
    return [each["id"] for each in page["data"]]


def test_words_of_input_and_output_are_found(own: httpx.Client) -> None:
    asked = make(own, f"Where is Zanzibar? {script({'say': 'An island.'})}")
    # The word is only in what the model says: in the script, its first letter is an escape.
    answered = make(own, '@@script [{"say": "\\u005aANZIBAR, an island."}]')
    make(own, "Something else.")
    page = search(own, "zanzibar island")
    assert ids(page) == [answered, asked]
    assert (page["has_more"], page["searched"]) == (False, 3)
    assert page["data"][0]["match"] == "ZANZIBAR, an island."
    assert "match" not in own.get("/responses").json()["data"][0]


def test_what_was_said_first_is_found_once(own: httpx.Client) -> None:
    first = make(own, "Zanzibar.")
    make(own, "And then?", previous_response_id=first)
    assert ids(search(own, "zanzibar")) == [first]


def test_a_search_is_combined_with_filters_and_pages(own: httpx.Client) -> None:
    made = [make(own, f"Zanzibar {n}.", metadata={"n": str(n % 2)}) for n in range(7)]
    odd = {"metadata[n]": "1"}
    assert ids(search(own, "zanzibar", **odd)) == made[5::-2]
    page = search(own, "zanzibar", limit=3)
    assert (ids(page), page["has_more"], page["last_id"]) == (made[:3:-1], True, made[4])
    rest = search(own, "zanzibar", after=page["last_id"], limit=4)
    assert (ids(rest), rest["has_more"]) == (made[3::-1], False)
    assert ids(search(own, "zanzibar", order="asc", limit=2)) == made[:2]
    assert ids(search(own, "zanzibar", status="failed")) == []


def test_what_is_not_stored_or_deleted_is_not_found(own: httpx.Client) -> None:
    make(own, "Zanzibar.", store=False)
    assert ids(search(own, "zanzibar")) == []
    made = make(own, "Zanzibar.")
    assert ids(search(own, "zanzibar")) == [made]
    assert own.delete(f"/responses/{made}").status_code == 200
    assert ids(search(own, "zanzibar")) == []


def test_a_blank_search_is_none(own: httpx.Client) -> None:
    made = make(own)
    assert ids(search(own, " ")) == [made]


@pytest.mark.parametrize("words", HOSTILE)
def test_no_search_is_an_error_of_the_server(http: httpx.Client, words: str) -> None:
    text = f"said: {words}"
    made = make(http, text)
    assert made in ids(search(http, words))


@pytest.mark.parametrize("words", ["x" * 10_000, "w " * 500 + "%", " ".join("abcdefghijklmnopq")])
def test_a_search_that_is_too_long_is_refused(http: httpx.Client, words: str) -> None:
    assert len(words) > 1000 or len(words.split()) > MAX_WORDS
    answer = http.get("/responses", params={"search": words})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "search"


def test_a_tenant_finds_only_its_own(serve_from: Any, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.toml"
    us, them = new_key(keys_file, "us"), new_key(keys_file, "them")
    with serve_from(tmp_path, auth="on", keys_file=keys_file) as server:
        clients = [
            httpx.Client(base_url=server.api, headers=bearer(key), timeout=30) for key in (us, them)
        ]
        with clients[0] as ours, clients[1] as theirs:
            made = make(ours, "Zanzibar.")
            assert ids(search(ours, "zanzibar")) == [made]
            assert ids(search(theirs, "zanzibar")) == []
            answer = theirs.get("/responses", params={"search": "zanzibar", "after": made})
            assert answer.status_code == 400


class StoreWithoutSearch(MemoryStore):
    """As one of another team, which has no search."""

    search_responses = ResponseStore.search_responses  # type: ignore[assignment]


def test_a_store_without_search_says_so(serve_from: Any, tmp_path: Path) -> None:
    name = f"{__name__}:{StoreWithoutSearch.__name__}"
    with (
        serve_from(tmp_path, store=name) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        made = make(client)
        assert ids(client.get("/responses").json()) == [made]
        answer = client.get("/responses", params={"search": "hi"})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("search", "unsupported_parameter")
        assert "cannot search" in error["message"]
