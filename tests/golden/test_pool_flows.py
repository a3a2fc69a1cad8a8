"""The golden flows through a pool of token servers: their streams are those of the scripted models.

The engine is the same, but it runs behind vLLM's wires of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import providers
from tests.conftest import Running, settings_for
from tests.support import fake_mcp_server
from tests.upstreams.token_server import WIRES, TellingEngine, TokenServer, TurnRegistry, serving

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.engines.scripted.markup import Markup
from antiphon.adapters.engines.vllm_http import VllmHttpOptions
from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup
from antiphon.application.model.supervision import SupervisedModel
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Format
from antiphon.entrypoints.container import Container
from antiphon.testing.server import serving_in_thread

from .test_golden_flows import (
    FLOWS,
    FLOWS_AT,
    STEP_TOKENS,
    Playing,
    as_sse,
    played,
    servers,
    streamed,
)

FORMATS: Mapping[str, tuple[Callable[[], Markup], Callable[[], Format]]] = {
    "scripted-chat": (ScriptedMarkup, scripted_chat),
    "scripted-harmony": (HarmonyMarkup, HarmonyFormat),
}
WIRES_OF = {"scripted-chat": ("generate", "completions"), "scripted-harmony": WIRES}
"""A bare server sends no text, which the format of chat templates reads: it needs a tokenizer."""

SHORTEST = (("scripted-chat", "generate"), ("scripted-harmony", "tokens_only"))
"""What the quick tests play: the wire that is made for tokens, with and without text."""

PLAYED = [
    (name, model, wire)
    for name, flow in FLOWS.items()
    for model in flow.models
    for wire in WIRES_OF[model]
]
OFTEN = [each for each in PLAYED if each[1:] in SHORTEST]
SELDOM = [each for each in PLAYED if each not in OFTEN]


class Pools:
    """A model for each format and wire, with two token servers behind it."""

    def __init__(self) -> None:
        self._turns = TurnRegistry()
        self._servers = {
            (model, wire): [self._server(model, wire) for _ in range(2)]
            for model, wires in WIRES_OF.items()
            for wire in wires
        }
        self.all = [server for pair in self._servers.values() for server in pair]

    def models(self) -> list[SupervisedModel]:
        return [
            SupervisedModel(self._model(name, f"{name}-{wire}", pair))
            for (name, wire), pair in self._servers.items()
        ]

    def _server(self, model: str, wire: str) -> TokenServer:
        make_markup, _ = FORMATS[model]
        engine = ScriptedEngine(make_markup(), step_tokens=STEP_TOKENS)
        return TokenServer(engine, wire=wire, turns=self._turns)

    def _model(self, model: str, name: str, pair: list[TokenServer]) -> TokenModel:
        _, make_format = FORMATS[model]
        engine = TellingEngine([name], VllmHttpOptions(urls=tuple(each.url for each in pair)))
        engine.turns = self._turns
        return TokenModel(make_format, engine)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Playing]]:
    pools = Pools()

    @contextmanager
    def serving_pools(folder: Path, **given: Any) -> Iterator[Running]:
        container = Container(settings=settings_for(folder, **given))
        container.supervised_models.override(providers.Object(pools.models()))
        with serving_in_thread(container) as served:
            yield Running(url=served.url, container=container, app=served.app)

    with (
        fake_mcp_server.site() as site,
        serving(*pools.all),
        servers(serving_pools, site, tmp_path_factory) as playing,
    ):
        yield playing


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model", "wire"), OFTEN)
def test_a_flow_through_a_pool_is_told_as_recorded(
    play: Mapping[str, Playing], name: str, model: str, wire: str
) -> None:
    check_flow(play, name, model, wire)


@pytest.mark.faults
@pytest.mark.parametrize(("name", "model", "wire"), SELDOM)
def test_a_flow_over_every_wire_is_told_as_recorded(
    play: Mapping[str, Playing], name: str, model: str, wire: str
) -> None:
    check_flow(play, name, model, wire)


def check_flow(play: Mapping[str, Playing], name: str, model: str, wire: str) -> None:
    _, streams = played(play, name, f"{model}-{wire}", streamed)
    for number, events in enumerate(streams, 1):
        recorded = (FLOWS_AT / f"{name}.{model}.{number}.sse").read_text()
        assert as_sse(events).replace(f"{model}-{wire}", model) == recorded
