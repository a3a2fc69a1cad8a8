"""Each golden flow, kept as bundles and replayed: today's code makes of it what it made then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from tests.golden import test_golden_flows as flows
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

from antiphon.domain.responses.traces import Bundle, read_bundle
from antiphon.entrypoints.commands.replay import Replay, replay, script_of


@pytest.fixture(scope="module")
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        yield listening


@pytest.fixture(scope="module")
def play(
    site: FakeMcpServer, serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, flows.Playing]]:
    def serve_traced(folder: Any, **settings: Any) -> Any:
        return serve_from(folder, keep_traces="all", **settings)

    with flows.servers(serve_traced, site, tmp_path_factory) as playing:
        yield playing


def bundles_of(play: Mapping[str, flows.Playing], name: str, model: str) -> list[Bundle]:
    """Play a flow, streamed, and return the bundles of its responses."""
    client = play[flows.FLOWS[name].web].client
    ids: list[str] = []

    def streamed(http: Any, body: Any) -> Any:
        response, events = flows.streamed(http, body)
        ids.append(response["id"])
        return response, events

    flows.played(play, name, model, streamed)
    return [read_bundle(client.get(f"/responses/{id_}/explain").content) for id_ in ids]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), flows.PLAYED)
def test_a_replayed_flow_shows_no_difference(
    play: Mapping[str, flows.Playing], name: str, model: str
) -> None:
    for bundle in bundles_of(play, name, model):
        assert bundle.missing == ()
        assert bundle.events
        replayed = replay(bundle)
        assert not replayed.differences, "\n".join(replayed.differences[0].lines)
        assert replayed == Replay(turns=len(bundle.turns), differences=())


@pytest.mark.parametrize("model", flows.MODELS)
def test_an_altered_bundle_shows_a_difference(
    play: Mapping[str, flows.Playing], model: str
) -> None:
    [bundle] = bundles_of(play, "mcp_list_and_call", model)
    last = bundle.turns[-1]
    assert last.output is not None
    changed = msgspec.structs.replace(last, output=last.output.replace("42 it is.", "43 it was."))
    altered = msgspec.structs.replace(bundle, turns=(*bundle.turns[:-1], changed))
    found = replay(altered).differences
    assert [each.where for each in found] == ["deltas of turn 3", "output items", "events"]
    assert any(line.startswith("+") and "43 it was." in line for line in found[1].lines)


def test_an_altered_item_shows_a_difference(play: Mapping[str, flows.Playing]) -> None:
    [bundle] = bundles_of(play, "mcp_list_and_call", "scripted-chat")
    text = bytes(bundle.response).replace(b"42 it is.", b"41 it was.")
    found = replay(msgspec.structs.replace(bundle, response=msgspec.Raw(text))).differences
    assert [each.where for each in found] == ["output items"]


@pytest.mark.parametrize("model", flows.MODELS)
def test_a_bundle_becomes_a_script(play: Mapping[str, flows.Playing], model: str) -> None:
    [bundle] = bundles_of(play, "mcp_thought_and_preamble", model)
    playing = play["a folder"]
    tools = flows.mcp(server_url=f"{playing.named['site']}/mcp")
    played, _ = flows.whole(
        playing.client, {"model": model, "input": script_of(bundle), "tools": tools}
    )
    recorded = msgspec.json.decode(bundle.response)["output"]
    assert [shown(item) for item in played["output"]] == [shown(item) for item in recorded]


def shown(item: Any) -> Any:
    return {name: value for name, value in item.items() if name != "id"}
