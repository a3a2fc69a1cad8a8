"""Golden flows in each family of chat formats and behind Chat Completions servers, replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Running, running, settings_for
from tests.support import fake_mcp_server
from tests.upstreams.chat_models import model_name, model_tables
from tests.upstreams.chat_server import scripted_chat_server
from tests.upstreams.chat_styles import STYLES

from antiphon.entrypoints.commands.replay import replay

from .test_family_flows import WITH_CALLS, serving
from .test_golden_flows import Playing, servers
from .test_replays import bundles_of

LOOP = "mcp_thought_and_preamble"


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Playing]]:
    def serve(folder: Path, **given: Any) -> Any:
        return serving(folder, keep_traces="all", **given)

    with fake_mcp_server.site() as site, servers(serve, site, tmp_path_factory) as playing:
        yield playing


@pytest.fixture(scope="module")
def upstreams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Playing]]:
    with fake_mcp_server.site() as site, scripted_chat_server() as upstream:

        @contextmanager
        def serve(folder: Path, **given: Any) -> Iterator[Running]:
            config = folder / "antiphon.toml"
            config.write_text(model_tables(upstream))
            settings = settings_for(folder, config=config, keep_traces="all", **given)
            with running(settings) as server:
                yield server

        with servers(serve, site, tmp_path_factory) as playing:
            yield playing


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_CALLS)
def test_a_flow_of_each_family_replays(families: Mapping[str, Playing], family: str) -> None:
    check_replays(families, f"scripted-{family}")


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_a_flow_through_a_chat_server_replays(upstreams: Mapping[str, Playing], style: str) -> None:
    check_replays(upstreams, model_name(style))


def check_replays(play: Mapping[str, Playing], model: str) -> None:
    for bundle in bundles_of(play, LOOP, model):
        assert bundle.turns[-1].output
        replayed = replay(bundle)
        assert not replayed.differences, "\n".join(replayed.differences[0].lines)
        assert replayed.notes == ()
