"""The golden flows through Chat Completions servers: their items are those of the scripted model.

The model is the same, but it runs behind a server that writes what it did as one of STYLES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Running, running, settings_for
from tests.http.conftest import frames
from tests.support import fake_mcp_server
from tests.upstreams.chat_models import model_name, model_tables
from tests.upstreams.chat_server import scripted_chat_server
from tests.upstreams.chat_styles import STYLES

from .test_family_flows import plain
from .test_golden_flows import (
    FLOWS,
    FLOWS_AT,
    Playing,
    check_order,
    in_background,
    played,
    servers,
    streamed,
    whole,
)

Json = dict[str, Any]

FULLY_PLAYED = ("openai", "mistral")
"""A style with pieces of everything, and one with wholes."""

LOOPS = ("mcp_thought_and_preamble", "mcp_side_by_side", "mcp_beside_a_clients_call")
"""What every style plays: reasoning and text before a call, two calls, and one of each kind."""

PLAYED = [name for name in FLOWS if name != "program_cut_while_written"]
"""Of a call that is cut, servers tell as much as they like."""

OFTEN = [
    (name, style)
    for style in STYLES
    for name in (PLAYED if style in FULLY_PLAYED else LOOPS)
    if "scripted-chat" in FLOWS[name].models
]
ALL = [(name, style) for style in STYLES for name in PLAYED]
SELDOM = [each for each in ALL if each not in OFTEN]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Playing]]:
    with fake_mcp_server.site() as site, scripted_chat_server() as upstream:
        tables = model_tables(upstream)

        @contextmanager
        def serving(folder: Path, **given: Any) -> Iterator[Running]:
            config = folder / "antiphon.toml"
            config.write_text(tables)
            with running(settings_for(folder, config=config, **given)) as server:
                yield server

        with servers(serving, site, tmp_path_factory) as playing:
            yield playing


@pytest.mark.slow
@pytest.mark.parametrize(("name", "style"), OFTEN)
def test_a_flow_is_the_same_through_a_chat_server(
    play: Mapping[str, Playing], name: str, style: str
) -> None:
    check_flow(play, name, style)


@pytest.mark.faults
@pytest.mark.parametrize(("name", "style"), SELDOM)
def test_every_flow_is_the_same_through_every_chat_server(
    play: Mapping[str, Playing], name: str, style: str
) -> None:
    check_flow(play, name, style)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_however_it_is_asked_for_a_flow_is_the_same_through_a_chat_server(
    play: Mapping[str, Playing], style: str
) -> None:
    expected, _ = played(play, LOOPS[0], model_name(style), streamed)
    for way in (whole, in_background):
        responses, _ = played(play, LOOPS[0], model_name(style), way)
        for response, wanted in zip(responses, expected, strict=True):
            assert items_of(response) == items_of(wanted)


def check_flow(play: Mapping[str, Playing], name: str, style: str) -> None:
    responses, streams = played(play, name, model_name(style), streamed)
    for number, (response, events) in enumerate(zip(responses, streams, strict=True), 1):
        recorded = frames((FLOWS_AT / f"{name}.scripted-chat.{number}.sse").read_text())
        wanted = recorded[-1]["response"]
        assert items_of(response) == items_of(wanted)
        assert response["status"] == wanted["status"]
        assert response["incomplete_details"] == wanted["incomplete_details"]
        check_order(events)
        assert joined_types(events) == joined_types(recorded)


def items_of(response: Json) -> list[Json]:
    """Return the items without ids: servers make up those of calls in forms of their own."""
    items: list[Json] = plain(response["output"])
    for item in items:
        item.pop("call_id", None)
        if item.get("caller"):
            item["caller"] = item["caller"]["type"]
    return items


def joined_types(events: Sequence[Json]) -> list[str]:
    """Return the types of events in order; how many deltas a text comes in does not count."""
    return [kind for kind, _ in groupby(event["type"] for event in events)]
