"""The guard that asks a moderations API: what it is asked, and whatever it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.moderation_server import FakeModerations, moderating, result_for

from antiphon.adapters.upstreams.moderations_api import (
    PIECE_CHARS,
    ModerationGuard,
    ModerationTerms,
)
from antiphon.domain.errors import FetchError
from antiphon.domain.responses.guards import PLACES, Pass, Refuse, Stop
from antiphon.entrypoints.wiring.fetching import http_fetcher
from antiphon.entrypoints.wiring.webhooks import operator_policy
from antiphon.testing.guards import GuardContract, a_question


@pytest.fixture
def server() -> Iterator[FakeModerations]:
    with moderating() as fake:
        yield fake


def connect(url: str, *, timeout_s: float = 10.0, **terms: Any) -> ModerationGuard:
    fetcher = http_fetcher(
        operator_policy([url]),
        max_bytes=100_000,
        timeout_s=timeout_s,
        max_redirects=0,
        reads=("POST",),
    )
    return ModerationGuard(
        url,
        fetcher,
        ModerationTerms(**{"places": PLACES, **terms}),
        model="omni-moderation-latest",
        api_key="secret",
    )


class TestModerationGuard(GuardContract):
    banned = "The word is xyzzy."

    @pytest.fixture
    def guard(self, server: FakeModerations) -> ModerationGuard:
        return connect(server.url)


async def test_the_server_gets_the_text_the_model_and_the_key(server: FakeModerations) -> None:
    await connect(server.url).check(a_question("Is it so?"))
    assert server.asked == [{"model": "omni-moderation-latest", "input": ["Is it so?"]}]
    assert server.keys == ["Bearer secret"]


async def test_a_text_that_is_flagged_is_refused_with_its_categories(
    server: FakeModerations,
) -> None:
    refused = await connect(server.url).check(a_question("xyzzy and plugh"))
    assert refused == Refuse(
        "This was refused by the moderation of the server (violence, violence/graphic)."
    )
    stopped = await connect(server.url, stops=True).check(a_question("xyzzy"))
    assert stopped == Stop("violence")


@pytest.mark.parametrize(
    ("thresholds", "passes"),
    [
        ({"violence": 0.5}, False),
        ({"violence": 0.9}, True),
        ({"illicit": 0.5}, True),
        ({"illicit": 0.05}, False),
        ({"illicit": 0.5, "violence": 0.5}, False),
    ],
)
async def test_thresholds_count_instead_of_the_flag(
    server: FakeModerations, thresholds: dict[str, float], passes: bool
) -> None:
    verdict = await connect(server.url, thresholds=thresholds).check(a_question("xyzzy"))
    assert (verdict == Pass()) is passes


@pytest.mark.parametrize("place", [0, PIECE_CHARS - 3, 3 * PIECE_CHARS])
async def test_a_long_text_is_sent_in_pieces_and_no_word_is_lost(
    server: FakeModerations, place: int
) -> None:
    text = "x " * (2 * PIECE_CHARS)
    text = f"{text[:place]}xyzzy{text[place:]}"
    verdict = await connect(server.url).check(a_question(text))
    assert isinstance(verdict, Refuse)
    assert max(map(len, server.texts)) == PIECE_CHARS


async def test_a_very_long_text_takes_several_requests(server: FakeModerations) -> None:
    text = "x" * (40 * PIECE_CHARS) + "xyzzy"
    assert isinstance(await connect(server.url).check(a_question(text)), Refuse)
    assert [len(body["input"]) for body in server.asked] == [32, 9]


async def test_of_a_text_that_has_passed_only_the_end_is_sent_again(
    server: FakeModerations,
) -> None:
    text = "y" * 5000
    await connect(server.url).check(a_question(text, start=4990))
    assert [len(sent) for sent in server.texts] == [266]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"{}"),
        (401, b'{"error": {"message": "No."}}'),
        (302, b""),
        (200, b"{"),
        (200, b"[]"),
        (200, b'{"results": []}'),
        (200, b'{"results": [{"flagged": "no"}]}'),
        (200, b'{"results": [{}]}'),
        (200, b'{"results": [' + b"[" * 5000 + b"]}"),
        (200, json.dumps({"results": [result_for("a")] * 2}).encode()),
        (200, b" " * 200_000),
    ],
)
async def test_any_other_answer_is_a_failure_and_never_a_pass(
    server: FakeModerations, status: int, body: bytes
) -> None:
    server.answer = status, body
    with pytest.raises(FetchError):
        await connect(server.url).check(a_question("Is it so?"))
    assert len(server.asked) == 1, "redirects are not followed"


async def test_a_category_without_a_score_is_a_failure(server: FakeModerations) -> None:
    with pytest.raises(FetchError, match="no score for 'hate'"):
        await connect(server.url, thresholds={"hate": 0.5}).check(a_question("Is it so?"))


async def test_a_server_that_does_not_answer_is_a_failure(server: FakeModerations) -> None:
    server.go_on.clear()
    with pytest.raises(FetchError):
        await connect(server.url, timeout_s=0.2).check(a_question("Is it so?"))
    server.go_on.set()
